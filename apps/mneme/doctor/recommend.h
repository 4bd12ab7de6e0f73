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
  std::int64_t host_bytes = 0;  // that this process may have, and that are free
};

struct Recommendation {
  std::vector<std::string> options;  // of `mneme serve`, each with its value; empty: nothing fits
  std::string reason;                // a sentence
  std::int64_t most_sequences = 0;   // of the context, with these options
  double tokens_per_second = 0;      // of all sequences with the context full; 0: unknown
  std::string faster;                // what else could run, and what it gives; or ""
};

// Exact before approximate, 16 bits before 8, the device before the host: the first form that has room for the
// sequences; else the one that has room for most of them.
Recommendation recommend_on_device(const DoctorDevice& device, const BenchShape& shape, const Wanted& wanted);
// The same without a GPU, with memory read at `read_rate` bytes a second. A gigabyte, or a twentieth of the memory, stays
// free. Where full attention gives a sequence less than a token a second, a method that reads a part is recommended.
Recommendation recommend_on_cpu(const BenchShape& shape, const Wanted& wanted, double read_rate);

// "2.0 tokens/s over the whole context", and where a prompt that fills it takes more than an hour, how long and what helps.
std::string prefill_text(double tokens_per_second, std::int64_t context);
// A rate with two digits, which never reads 0: "0.42", "3.1", "57".
std::string rate_text(double rate);

std::string recommendation_text(const Recommendation& r);
nlohmann::ordered_json recommendation_json(const Recommendation& r);

}  // namespace mneme::cli
