// Which options a model should run with on this machine: arithmetic over what was measured.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/mneme/doctor/doctor_device.h"
#include "apps/mneme/measured/bench_model.h"

namespace mneme::cli {

struct Wanted {
  std::int64_t context = 0, sequences = 1;
  std::int64_t host_bytes = 0;  // that this process may have
};

struct Recommendation {
  std::vector<std::string> options;  // of `mneme serve`, each with its value; empty: nothing fits
  std::string reason;                // a sentence
  std::int64_t most_sequences = 0;   // of the context, with these options
  double tokens_per_second = 0;      // of all sequences with the context full; 0: unknown
  std::string faster;                // a method in place of full attention, and what it gives; or ""
};

// Exact before approximate, 16 bits before 8, the device before the host: the first form that has room for the
// sequences; else the one that has room for most of them.
Recommendation recommend_on_device(const DoctorDevice& device, const BenchShape& shape, const Wanted& wanted);
// The same without a GPU, with memory read at `read_rate` bytes a second.
Recommendation recommend_on_cpu(const BenchShape& shape, const Wanted& wanted, double read_rate);

std::string recommendation_text(const Recommendation& r);
nlohmann::ordered_json recommendation_json(const Recommendation& r);

}  // namespace mneme::cli
