// Suites: published benchmarks, and questions made by the program, as prompts with references.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/eval/generated/token_counter.h"
#include "apps/eval/prose/text_source.h"
#include "apps/eval/scorers/scorer.h"

namespace mneme::eval {

// How the prompt becomes tokens.
enum class Framing : std::uint8_t {
  kTurn,      // one user turn of the chat format
  kDocument,  // the same, with the format's own separator between document and question
  kPlain,     // no chat format: beginning-of-sequence and text
};

// A further question of a conversation.
struct SuiteTurn {
  std::string question, answer;
};

// One question.
struct SuiteItem {
  std::string id;
  std::vector<std::string> groups;  // columns of the table beside its task's: "easy", "0-4k"
  std::string system;
  std::string prompt;              // before truncation
  std::size_t question_bytes = 0;  // its end that is the question
  std::string answer_prefix;       // the answer begins with it; it is part of the input
  Framing framing = Framing::kTurn;
  Reference reference;
  std::string_view scorer;
  std::int32_t max_tokens = 64;
  bool first_line_only = false;  // LongBench's few-shot tasks: leading line ends apart, the rest of the answer is cut
  std::string stop;              // text that ends the answer; empty: none
  double depth = -1;             // of the fact, 0 to 1
  // What follows in the same conversation. Each is asked behind the reference answers of those before, whatever the
  // model said, and scored as the first; the method's state lives through all of them.
  std::vector<SuiteTurn> turns;
};

// Questions over one context: what is prefilled once and what a shard has or has not. The context is everything of the
// prompt before the question.
struct SuiteContext {
  std::string task;
  std::int64_t length = 0;  // tokens that were asked for; 0: as the file has it
  std::string id;           // unique within task and length
  std::function<std::vector<SuiteItem>()> make;
};

// Fields of a user's own file (`--suite jsonl`).
struct JsonlFields {
  std::string prompt_template = "{context}\n\n{question}";
  std::string context = "context";       // the document's placeholder: the question is what follows it
  std::string answers = "answers";       // a string, or an array of strings
  std::string id = "id", task = "task";  // optional fields
};

struct SuiteSetting {
  std::filesystem::path data;         // file or folder; empty: none
  std::vector<std::string> tasks;     // empty: the suite's
  std::vector<std::int64_t> lengths;  // of generated contexts
  int samples = 0;                    // generated: contexts for each task and length; files: at most; 0: all (10)
  std::uint64_t seed = 1;
  std::int32_t max_tokens = 0;  // of answers; 0: the suite's
  JsonlFields jsonl;
  // For generated suites. `frame_tokens` is what the chat format adds to a prompt.
  const TextSource* prose = nullptr;
  const TokenCounter* counter = nullptr;
  std::int64_t frame_tokens = 0;
};

enum class SuiteData : std::uint8_t { kNeeded, kOptional, kNone };
enum class SuiteMeasure : std::uint8_t { kScore, kPerplexity };

struct SuiteEntry {
  std::string_view name;
  std::string_view summary;
  SuiteData data;
  bool question_by_decode;  // the default of --question
  std::int64_t longest;     // tokens of a truncated prompt, as published; 0: what the model's context leaves
  // Errors  kFile, kFormat: `data`; kOption: unknown tasks, lengths too short.
  std::vector<SuiteContext> (*read)(const SuiteSetting& setting);
  SuiteMeasure measure = SuiteMeasure::kScore;
};

std::span<const SuiteEntry> suite_table();
// Errors  kOption: no such suite (the known ones are named).
const SuiteEntry& find_suite(std::string_view name);
// Contexts of the suite. Errors  kOption: --data is missing, or given to a suite that has none; as SuiteEntry::read.
std::vector<SuiteContext> read_suite(const SuiteEntry& suite, const SuiteSetting& setting);

// Readers, by file.
std::vector<SuiteContext> read_longbench(const SuiteSetting& s);
std::vector<SuiteContext> read_longbench_v2(const SuiteSetting& s);
std::vector<SuiteContext> read_infinitebench(const SuiteSetting& s);
std::vector<SuiteContext> read_longgenbench(const SuiteSetting& s);
std::vector<SuiteContext> read_math(const SuiteSetting& s);
std::vector<SuiteContext> read_gpqa(const SuiteSetting& s);
std::vector<SuiteContext> read_ruler(const SuiteSetting& s);
std::vector<SuiteContext> read_niah(const SuiteSetting& s);
std::vector<SuiteContext> read_passkey(const SuiteSetting& s);
std::vector<SuiteContext> read_facts(const SuiteSetting& s);
std::vector<SuiteContext> read_long(const SuiteSetting& s);
std::vector<SuiteContext> read_jsonl(const SuiteSetting& s);
std::vector<SuiteContext> read_pg19(const SuiteSetting& s);

}  // namespace mneme::eval
