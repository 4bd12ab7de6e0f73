// JSON of any bytes as each of the files of a Hugging Face folder: config.json, tokenizer.json, and those beside it.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "mneme/error.h"
#include "src/formats/json.h"
#include "src/formats/safetensors/hf_model.h"
#include "src/formats/safetensors/quantised.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mneme;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Json json;
  try {
    json = parse_json(text, "fuzz.json", kMaxConfigBytes);
  } catch (const Error&) {
    return 0;
  }
  const JsonRef root(json, "fuzz.json");
  try {
    read_hf_config(root);
  } catch (const Error&) {
  }
  try {
    read_quant_config(root);
  } catch (const Error&) {
  }
  try {
    TokenizerData tokenizer = read_tokenizer_json(root);
    apply_side_files({&root, &root, &root, {}}, tokenizer);
  } catch (const Error&) {
  }
  try {
    TokenizerData tokenizer;
    tokenizer.tokens = {"<s>", "</s>", "a"};
    tokenizer.types = {TokenType::kControl, TokenType::kControl, TokenType::kNormal};
    apply_side_files({&root, &root, &root, "template"}, tokenizer);
  } catch (const Error&) {
  }
  return 0;
}
