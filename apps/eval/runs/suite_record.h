// What one method answered on one context of a suite, and what it cost.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/eval/report.h"

namespace mneme::eval {

// A method's counters after so many answer tokens, summed over layers and heads since the answer began.
struct AlongPoint {
  std::int64_t tokens = 0;
  std::int64_t checks = 0, corrections = 0;       // of the gate
  std::int64_t selections = 0, reused = 0;        // by (layer, head)
  std::int64_t selected = 0, replaced = 0;        // units
  std::int64_t attended = 0, attended_heads = 0;  // tokens over (layer, head) of compressed layers
  std::int64_t kv_bytes = 0, method_bytes = 0;    // memory that the sequence holds now
  // For units that are lists (LouisKV), on the CPU alone: segments of the answer, and units that the last step
  // attended, all and segments.
  std::int64_t segments = 0, units_attended = 0, segments_attended = 0;
};

// What one layer of a method did, summed over the answers of a record.
struct LayerCost {
  std::int64_t attended = 0, attended_heads = 0;
  std::int64_t checks = 0, corrections = 0;
  std::int64_t selected = 0, replaced = 0;
};

struct SuiteAnswer {
  std::string id;
  std::vector<std::string> groups;
  std::vector<std::string> texts;  // one a sample
  std::vector<double> scores;      // 0 to 1, one a sample
  // For long answers, one a line of the reference, 0 to 1: whether the first sample has it in the same line; where the
  // answer was fed, the share of its tokens that were predicted.
  std::vector<double> lines;
  std::int64_t tokens = 0;  // of all samples
  double depth = -1;
  bool truncated = false;
};

struct SuiteRecord {
  std::int64_t context = 0;  // in the order of the suite
  std::string task;
  std::int64_t length = 0;
  std::string context_id, method;
  std::int64_t prompt_tokens = 0;
  std::vector<SuiteAnswer> answers;
  double log_likelihood = 0;  // perplexity suites
  std::int64_t scored_tokens = 0;
  // Wall time: of reading the document (by the first method of the context; others share it), and of this method.
  double prefill_seconds = 0, seconds = 0;
  MethodCost cost;
  std::vector<AlongPoint> along;
  std::vector<LayerCost> layers;
};

// Adds a sequence's counters to those of its record.
void add_layers(SuiteRecord& record, const MethodStats& stats);

nlohmann::json to_json(const SuiteRecord& record);
// Errors  kFormat: `where` is no record.
SuiteRecord suite_record_from_json(const nlohmann::json& line, const std::string& where);

}  // namespace mneme::eval
