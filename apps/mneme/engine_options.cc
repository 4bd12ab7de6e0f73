#include "apps/mneme/engine_options.h"

#include "apps/mneme/options.h"

namespace mneme::cli {
void add_device_option(CLI::App& c, EngineOptions& e) {
  add_named(c, "--device", e.device, parse_device, "cpu, or cuda: the first NVIDIA GPU")
      ->type_name("NAME")
      ->check(one_of({"cpu", "cuda"}))
      ->group(kEngineGroup);
}

void add_kv_room_options(CLI::App& c, EngineOptions& e) {
  const auto add = [](CLI::Option* option) { return option->group(kEngineGroup); };
  add(add_gib(c, "--kv-offloading-size,--host-pool-gib", e.kv_memory_bytes,
              "KV cache size (default: all sequences at full length, at most half of the memory)"));
  CLI::Option* const folder = add(c.add_option("--kv-spill", e.kv_spill.folder,
                                               "Folder on a fast disk for the KV cache of running sequences that "
                                               "does not fit memory, coldest pages first")
                                      ->type_name("FOLDER")
                                      ->check(not_empty()));
  CLI::Option* const size = add(add_gib(c, "--kv-spill-gib", e.kv_spill.bytes, "Size of it, allocated at the start"));
  folder->needs(size);
  size->needs(folder);
}

void add_machine_options(CLI::App& c, EngineOptions& e, bool& no_pin) {
  const auto add = [](CLI::Option* option) { option->group(kEngineGroup); };
  add(add_named(
          c, "--kv-store", e.kv_store, parse_kv_residency,
          "With --device cuda, where to store the KV cache: device, host, or auto (the device where it has room for "
          "it and for the method's index, else the host)")
          ->type_name("WHERE")
          ->check(one_of({"auto", "device", "host"})));
  add(c.add_option_function<std::string>(
           "--gpu-layers", [&e](const std::string& text) { e.gpu_layers = parse_gpu_layers(text); },
           "With --device cuda, layers whose weights are on the device, or auto: as many as fit; the others' are in "
           "host memory")
          ->default_str("auto")
          ->type_name("N"));
  add(add_named(c, "--kv-cache-dtype", e.kv_cache_dtype, parse_kv_dtype,
                "Type of the KV cache: bf16, f16, or in half the memory int8 or fp8")
          ->type_name("TYPE")
          ->check(one_of({"bf16", "f16", "int8", "fp8"})));
  add(c.add_option("-t,--threads", e.threads, "Compute threads (default: one per CPU)")->check(whole_number(1, 1024)));
  add(c.add_flag("--no-pin", no_pin, "Do not pin threads to CPUs; better beside other programs that compute"));
  add(add_named(c, "--numa", e.numa, parse_numa_policy,
                "NUMA policy: none, distribute (over all nodes), isolate (on one)")
          ->type_name("POLICY")
          ->check(one_of({"none", "distribute", "isolate"})));
}

void add_deterministic_option(CLI::App& c, EngineOptions& e) {
  c.add_flag("--deterministic", e.deterministic, "The same tokens whatever else is in the batch; slower")
      ->group(kEngineGroup);
}

void add_speculative_option(CLI::App& c, EngineOptions& e) {
  c.add_option_function<std::string>(
       "--speculative", [&e](const std::string& text) { e.speculation = parse_speculation(text); },
       "Guess tokens of the answer by what followed their like earlier in the text, and verify up to k of them in one "
       "step: off, ngram, or ngram:k=7,min=4. The same answers, sooner where they quote; full attention on the CPU")
      ->type_name("DRAFTS")
      ->default_str("off")
      ->group(kEngineGroup);
}

}  // namespace mneme::cli
