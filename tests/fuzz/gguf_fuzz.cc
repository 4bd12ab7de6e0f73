// A GGUF file of any bytes: an Error, or a model whose tensors can be read to the last byte.
#include <cstddef>
#include <cstdint>
#include <span>

#include "mneme/error.h"
#include "src/formats/gguf/gguf_checkpoint.h"
#include "src/formats/gguf/gguf_file.h"
#include "src/formats/gguf/gguf_model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mneme;
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const GgufFile file = GgufFile::parse(bytes, "fuzz.gguf", GgufFile::Tensors::kSkip);
    file.describe();
    read_gguf_tokenizer(file);
  } catch (const Error&) {
  }
  try {
    const auto checkpoint = open_gguf(bytes, "fuzz.gguf");
    unsigned sum = 0;
    for (const CheckpointTensor& t : checkpoint->tensors()) {
      const std::size_t n =
          t.view.rank() == 1 ? t.view.stride_bytes() : static_cast<std::size_t>(t.view.dim(0)) * t.view.stride_bytes();
      sum += static_cast<unsigned>(t.view.data()[0]) + static_cast<unsigned>(t.view.data()[n - 1]);
    }
    volatile unsigned keep = sum;
    (void)keep;
  } catch (const Error&) {
  }
  return 0;
}
