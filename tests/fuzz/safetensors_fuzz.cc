// A safetensors file of any bytes: an Error, or tensors that can be read to the last byte, and quantised matrices whose
// parts fit or are named.
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "mneme/error.h"
#include "src/formats/safetensors/quantised.h"
#include "src/formats/safetensors/safetensors.h"

namespace mneme {
namespace {

constexpr std::int64_t kMaxElements = 1 << 20;

// Repacks each matrix as every method would have it, of the shape that its main tensor suggests.
unsigned repack_all(const std::map<std::string, const SafetensorsTensor*>& tensors) {
  static ThreadPool pool(1);
  const auto find = [&](const std::string& name) {
    const auto it = tensors.find(name);
    return it == tensors.end() ? nullptr : it->second;
  };
  unsigned repacked = 0;
  for (const auto& [name, t] : tensors) {
    const std::string base = name.substr(0, name.rfind('.'));
    for (const QuantMethod method : {QuantMethod::kFp8, QuantMethod::kCompressedTensors, QuantMethod::kGptq,
                                     QuantMethod::kAwq, QuantMethod::kModelOpt}) {
      const QuantConfig config{.method = method, .name = "fuzz", .block = {128, 128}};
      const bool words = t->type == SafetensorsType::kI32;
      const bool gptq = method == QuantMethod::kGptq, awq = method == QuantMethod::kAwq;
      const std::int64_t n = gptq ? t->dims[1] : awq ? t->dims[1] * 8 : t->dims[0];
      const std::int64_t k = gptq  ? t->dims[0] * 8
                             : awq ? t->dims[0]
                                   : t->dims[1] * (words                             ? 8
                                                   : t->type == SafetensorsType::kU8 ? 2
                                                                                     : 1);
      if (n > kMaxElements || k > kMaxElements || n * k > kMaxElements) continue;
      try {
        const auto matrix = repack_quantised(config, {"ours", base + ".weight", n, k}, find, "fuzz", pool);
        repacked += matrix ? static_cast<unsigned>(matrix->blocks.data()[0]) : 0;
      } catch (const Error&) {
      }
    }
  }
  return repacked;
}

}  // namespace
}  // namespace mneme

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mneme;
  try {
    const auto all = parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz.safetensors");
    std::map<std::string, const SafetensorsTensor*> by_name;
    unsigned sum = 0;
    for (const SafetensorsTensor& t : all) {
      sum += static_cast<unsigned>(t.data.front()) + static_cast<unsigned>(t.data.back());
      if (is_aligned(t)) by_name[t.name] = &t;  // HfCheckpoint copies the others
    }
    volatile unsigned keep = sum + repack_all(by_name);
    (void)keep;
  } catch (const Error&) {
  }
  return 0;
}
