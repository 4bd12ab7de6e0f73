#include "src/model/device_types.h"

#include <fmt/format.h>

#include "src/base/error.h"

namespace mneme {

void expect_device_types(const Model& model) {
  const Architecture architecture = model.config().architecture;
  if (architecture == Architecture::kMistral3 || architecture == Architecture::kQwen3Moe)
    fail(ErrorKind::kUnsupported,
         "--device cuda: the device does not run models of the architecture {} yet; expected llama, mistral, qwen2 or "
         "qwen3. Run with --device cpu",
         architecture_name(architecture));
  int layer = 0;
  for (const LayerWeights& w : model.layers()) {
    const auto expect = [layer](std::string_view name, const WeightMatrix& matrix) {
      const std::string tensor = fmt::format("blk.{}.{}.weight", layer, name);
      if (!matrix.columns().empty())
        fail(ErrorKind::kUnsupported,
             "--device cuda: tensor '{}' has its groups in another order (act-order), which the device does not "
             "multiply yet. Run with --device cpu, or write a file: mneme convert MODEL OUT.gguf --type q8_0",
             tensor);
    };
    expect("attn_q", w.q);
    expect("attn_k", w.k);
    expect("attn_v", w.v);
    expect("attn_output", w.o);
    expect("ffn_gate", w.gate);
    expect("ffn_up", w.up);
    expect("ffn_down", w.down);
    ++layer;
  }
}

}  // namespace mneme
