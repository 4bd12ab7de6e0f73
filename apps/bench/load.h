// Load for a server: streamed completions at a rate or a concurrency, and when their tokens came.
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
  std::int64_t max_concurrency = 0;  // 0: no limit
  double request_rate = 0;           // a second, with exponential gaps; 0: as fast as max_concurrency lets
  std::vector<std::int64_t> prompt_tokens = {512};  // taken in turn
  std::int64_t output_tokens = 64;
  std::int64_t shared_tokens = 0;  // of every prompt: at its beginning, the same for all
  std::int64_t vocabulary = 8192;  // ids are drawn from its middle half, where special tokens are not
  std::uint64_t seed = 1;
  double timeout_seconds = 600;
};

// Times in seconds from the start of the request.
struct LoadRecord {
  std::int64_t prompt_tokens = 0, output_tokens = 0;
  double start = 0;            // from the start of the run
  std::vector<double> pieces;  // when pieces of the answer came, each of one token or more
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

// Errors  kOption: the host's name cannot be resolved. What happens to requests is in their records.
LoadRun run_load(const LoadOptions& options, const std::function<void(std::int64_t done)>& progress = {});

// GET, for what the server is. Errors  kOption: no server there, no answer of status 200.
std::string http_get(const std::string& host, std::uint16_t port, const std::string& target,
                     const std::string& api_key);

}  // namespace mneme::server
