// A safetensors file of any bytes: an Error, or tensors that can be read to the last byte.
#include <cstddef>
#include <cstdint>
#include <span>

#include "mneme/error.h"
#include "src/formats/safetensors/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    unsigned sum = 0;
    for (const mneme::SafetensorsTensor& t :
         mneme::parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz.safetensors"))
      sum += static_cast<unsigned>(t.data.front()) + static_cast<unsigned>(t.data.back());
    volatile unsigned keep = sum;
    (void)keep;
  } catch (const mneme::Error&) {
  }
  return 0;
}
