// Weight matrices as they lie on the device.
//
// bf16 is row-major. Quantised matrices are repacked on upload into the order in which tensor-core fragments take them,
// without a loss: codes and scales are those of the checkpoint.
//
//   octet  8 rows; the octets of a matrix follow each other, each contiguous. Missing rows of the last one are zero.
//   chunk  128 columns of an octet (types with blocks of 256: 256 columns); the row is padded with zeros to whole ones
//   slab   128 columns of a chunk: 4 steps of 32
//
//   chunk := slab {slab} scales        slab := main high
//
// Lane 4 g + t of a warp has, of each step, eight columns of row g. Scales per 32 and more: 8 t .. 8 t + 7. Scales per
// 16: 4 t .. 4 t + 3 and 16 + 4 t .. 16 + 4 t + 3, so that each k16 of a tensor-core instruction has one scale. The planes
// of a slab, in bits:
//
//   8    2 x 16 bytes a lane: steps 0, 1, then 2, 3; bytes in the order of the columns
//   4    16 bytes a lane, a word a step: column e in nibble (e % 2) * 4 + e / 2; types with a code book: in nibble e
//   2    8 bytes a lane, a word for two steps: column e of step s in bits 2 p, 2 p + 1, p = (s % 2) * 4 + e / 2 + e % 2 * 8
//   1    4 bytes a lane: column e of step s in bit s * 4 + e / 2 + e % 2 * 16
//
// Types of 5 bits are a plane of 4 and one of 1, of 6 bits 4 and 2, of 3 bits 2 and 1. Bytes a weight, and what a scale
// area has for each of its 8 rows, in weight_format.cuh.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/tensor/dtype.h"

namespace mneme {

inline constexpr std::int64_t kOctet = 8, kSlab = 128;

// Bytes of the parts of a quantised type's chunk.
struct WeightLayout {
  int slabs = 1;        // per chunk
  int slab_bytes = 0;   // codes
  int scale_bytes = 0;  // of a chunk
  int chunk_bytes() const { return slabs * slab_bytes + scale_bytes; }
};
// Requires  is_quantised(dtype).
WeightLayout weight_layout(DType dtype);

struct DeviceMatrix {
  const std::byte* values = nullptr;
  DType dtype = DType::kBF16;
  bool on_host = false;  // `values` is mapped host memory, which kernels read in place
  std::int64_t n_out = 0, n_in = 0;
  // Act-order: column j multiplies value columns[j] of x, [n_in] in device memory. GEMMs take x in the matrix's order
  // (gather_columns_cuda). Null: as they are.
  const std::int32_t* columns = nullptr;

  std::int64_t octets() const { return (n_out + kOctet - 1) / kOctet; }
  std::int64_t slabs() const;       // of a row
  std::size_t octet_bytes() const;  // of a quantised type
  std::size_t bytes() const;
};

// Aborts: a skinny GEMM was called with rows that skinny_gemm_takes() refuses.
[[noreturn]] void no_skinny_gemm(std::int32_t rows);

}  // namespace mneme
