// What a KV method did, as mneme/stats.h has it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "mneme/stats.h"
#include "python/src/engine.h"

namespace mneme::python {

void bind_stats(nb::module_& m) {
  using S = KvMethodStats;
  nb::class_<S::Layer>(m, "KvLayerStats", "What the method did in one layer.")
      .def_ro("dense", &S::Layer::dense, "Attends every token.")
      .def_ro("achieved_budget", &S::Layer::achieved_budget, "Tokens that one KV head read in one step, mean.")
      .def_ro("correction_rate", &S::Layer::correction_rate,
              "Share of (step, KV head) whose speculative selection was corrected.")
      .def_ro("kept_share", &S::Layer::kept_share, "Share of the prompt's tokens kept at the end of prefill.");
  nb::class_<S::Selections>(m, "KvSelections", "Counts over (step, layer, KV head).")
      .def_ro("made", &S::Selections::made, "With the query of the step itself.")
      .def_ro("reused", &S::Selections::reused, "Made in an earlier step.")
      .def_ro("checks", &S::Selections::checks, "Reused ones that a gate checked.")
      .def_ro("corrections", &S::Selections::corrections, "Reused ones that a gate corrected.")
      .def_ro("correction_rate", &S::Selections::correction_rate, "corrections / checks; 0 without checks.");
  nb::class_<S::Units>(m, "KvUnits", "Units that were selected.")
      .def_ro("selected", &S::Units::selected)
      .def_ro("replaced", &S::Units::replaced)
      .def_ro("turnover", &S::Units::turnover, "replaced / selected.")
      .def_ro("missing", &S::Units::missing, "Selected units outside the device cache.")
      .def_ro("recalled", &S::Units::recalled, "Units copied into the device cache.")
      .def_ro("host_to_device_bytes", &S::Units::host_to_device_bytes, "Bytes over the link.");
  nb::class_<S::Audit>(m, "KvAudit", "Means over the audited (step, layer, KV head).")
      .def_ro("samples", &S::Audit::samples)
      .def_ro("recall", &S::Audit::recall, "Share of the tokens with the largest true attention that were read.")
      .def_ro("mass", &S::Audit::mass, "True attention probability of the tokens that were read.")
      .def_ro("error", &S::Audit::error, "Relative L2 error of the attention output.");
  nb::class_<S>(m, "KvMethodStats", "What the KV method did for an answer.")
      .def_ro("layers", &S::layers, "Empty under full attention.")
      .def_ro("kv_bytes_per_step", &S::kv_bytes_per_step, "Bytes of KV cache that attention read a step.")
      .def_ro("index_bytes_per_step", &S::index_bytes_per_step, "Bytes of the index that selection read a step.")
      .def_ro("kv_bytes_read", &S::kv_bytes_read, "By attention, all steps, bytes.")
      .def_ro("index_bytes", &S::index_bytes, "Held, bytes.")
      .def_ro("selections", &S::selections)
      .def_ro("units", &S::units)
      .def_ro("dropped_tokens", &S::dropped_tokens, "For good, summed over layers and KV heads.")
      .def_ro("prefill_end_seconds", &S::prefill_end_seconds)
      .def_ro("audit", &S::audit);
}

}  // namespace mneme::python
