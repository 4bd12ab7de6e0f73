// A build without a library's attention.
#include "src/kernels/attention_library_cuda.h"

namespace mneme {

std::int64_t LibraryAttention::bytes(std::int32_t, std::int32_t, std::int64_t) {
  return 0;
}
void LibraryAttention::prepare(std::int32_t, const KvTables&, std::int64_t) {}
bool LibraryAttention::attend(const PrefillAttentionCuda&, const KvTables&, std::int32_t, const CudaContext&) {
  return false;
}
bool LibraryAttention::attend_contiguous(const PrefillAttentionCuda&, const KvTables&, const std::byte*, std::int64_t,
                                         const CudaContext&) {
  return false;
}

}  // namespace mneme
