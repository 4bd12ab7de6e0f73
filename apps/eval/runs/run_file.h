// Records of a run on disk: one line of settings, then a record a line, appended as they are made. A run that was killed
// goes on from its file; files of shards are merged.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/eval/runs/suite_record.h"

namespace mneme::eval {

// The k-th of n parts, k from 1: contexts u with u % n == k - 1.
struct Shard {
  std::int64_t k = 1, n = 1;
  bool has(std::int64_t context) const { return context % n == k - 1; }
};
// "3/8". Errors  kOption.
Shard parse_shard(std::string_view text);

class RunFile {
 public:
  // Reads the records of an earlier run with the same settings, if the file exists; a last line that was cut off is
  // dropped. An empty path: records are kept in memory alone.
  //
  // Errors  kOption: the file has other settings, or another shard; kFormat: not a run; kFile.
  RunFile(std::string path, nlohmann::json settings, const Shard& shard);

  const std::vector<SuiteRecord>& records() const { return records_; }
  bool has(std::int64_t context, std::string_view method) const;
  // Errors  kFile.
  void append(SuiteRecord record);

 private:
  std::string path_;
  std::vector<SuiteRecord> records_;
  std::set<std::pair<std::int64_t, std::string>> known_;
};

struct MergedRun {
  nlohmann::json settings;
  std::vector<SuiteRecord> records;  // by context, then in the order of the settings' methods
  std::int64_t missing = 0;          // (context, method) pairs without a record
};
// Records of files with the same settings; the first of several records of one (context, method) counts.
//
// Errors  as RunFile; kOption: files of different settings (the key that differs is named).
MergedRun merge_runs(const std::vector<std::string>& paths);
// The order of merge_runs().
void sort_records(std::vector<SuiteRecord>& records, const nlohmann::json& settings);

}  // namespace mneme::eval
