// Load for a server: streamed completions at a given rate or concurrency, and the arrival times of their tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mneme::server {

struct LoadOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  std::string api_key;
  std::string model;  // named in requests where it is not empty
  std::string kv;     // JSON object of the requests' "kv"; empty: none
  std::int64_t requests = 100;
  std::int64_t max_concurrency = 0;                 // 0: no limit
  double request_rate = 0;                          // per second, exponential gaps; 0: limited by max_concurrency only
  std::vector<std::int64_t> prompt_tokens = {512};  // round robin
  std::int64_t output_tokens = 64;
  std::int64_t shared_tokens = 0;  // length of a prefix common to all prompts
  std::int64_t vocabulary = 8192;  // ids are drawn from its middle half, to avoid special tokens
  std::uint64_t seed = 1;
  double timeout_seconds = 600;
};

// Times in seconds from the start of the request.
struct LoadRecord {
  std::int64_t prompt_tokens = 0, output_tokens = 0;
  double start = 0;            // from the start of the run
  std::vector<double> pieces;  // arrival times of chunks of the answer, each of one token or more
  double end = 0;
  int status = 0;     // 0: no answer
  std::string error;  // empty: complete

  bool complete() const { return error.empty(); }
  double first_token() const { return pieces.empty() ? end : pieces.front(); }
  // Mean seconds a token after the first.
  double per_token() const;
};

struct LoadRun {
  std::vector<LoadRecord> records;  // in order of start
  double seconds = 0;
  std::int64_t most_open = 0;  // requests at once
};

// Errors  kOption: the host name does not resolve. Failures of single requests are in their records.
LoadRun run_load(const LoadOptions& options, const std::function<void(std::int64_t done)>& progress = {});

// GET. Errors  kOption: no server, or a status other than 200.
std::string http_get(const std::string& host, std::uint16_t port, const std::string& target,
                     const std::string& api_key);

}  // namespace mneme::server
