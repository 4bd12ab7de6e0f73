// Mneme's C++ API: open a model, start it, ask questions about documents.
//
//   mneme::LanguageModel model("model.gguf");
//   mneme::Session session(model);
//   mneme::Answer answer = session.ask({.document = book, .question = "Who is the widow Carey?"});
//
// Errors   whatever the world gets wrong throws mneme::Error (mneme/error.h). The library prints nothing.
// Threads  a LanguageModel and its sessions belong to one thread at a time; the model computes with threads of its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mneme/error.h"
#include "mneme/options.h"
#include "mneme/progress.h"

namespace mneme {

// This library's version, "0.1.0".
std::string_view version();

struct ModelInfo {
  std::string name;          // as the file calls it; may be empty
  std::string architecture;  // "llama", "mistral", "qwen2", "qwen3"
  std::string file_format;   // "GGUF v3", "Hugging Face (safetensors)"
  std::string chat_family;   // whose framing of turns is used: "llama-3", "chatml", ...; "none": plain text
  std::int64_t context = 0;  // tokens that the model was made for
  std::int64_t vocabulary = 0;
  std::int64_t layers = 0;
};

// One turn of the user. Texts are UTF-8. Special tokens in them are ordinary characters, so that a document cannot end
// a turn.
struct Turn {
  std::string document;  // what the question is about; may be empty
  std::string question;  // follows the document after two empty lines; may be empty, but not both
  std::string system;    // first turn of a session only; families without a system role put it before the document
};

// An opened checkpoint: what the model is, and its tokenizer. Cheap; the weights are not read yet.
class ModelFile {
 public:
  // A .gguf file, or a Hugging Face folder (config.json, safetensors, tokenizer.json).
  //
  // Errors  kFile, kFormat, kUnsupported.
  explicit ModelFile(const std::filesystem::path& path);
  ~ModelFile();
  ModelFile(ModelFile&&) noexcept;
  ModelFile& operator=(ModelFile&&) noexcept;

  ModelInfo info() const;
  // Frames turns by this chat template (Jinja, its text) instead of the model's own.
  //
  // Errors  kFormat, kRequest: it cannot be read or rendered, or does not show what the user says.
  void set_chat_template(std::string text);
  std::vector<std::int32_t> tokenize(std::string_view text, SpecialTokens special = SpecialTokens::kAsText) const;
  std::string detokenize(std::span<const std::int32_t> tokens) const;
  // Tokens that `turn` takes as the first one of a session, framing included.
  std::int64_t count_tokens(const Turn& turn, const AskOptions& options = {}) const;

 private:
  friend class LanguageModel;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A model that is ready to compute. Sessions share its weights and its room for keys and values.
class LanguageModel {
 public:
  // Takes the file over, reads the weights and starts the threads.
  //
  // Errors  kFormat (tensors missing or of the wrong shape), kUnsupported, kOption, kResource (no room for one sequence
  // of the context asked for).
  explicit LanguageModel(ModelFile file, const EngineOptions& options = {}, const ProgressFn& progress = {});
  // The same for the file at `path`.
  explicit LanguageModel(const std::filesystem::path& path, const EngineOptions& options = {},
                         const ProgressFn& progress = {});
  ~LanguageModel();
  LanguageModel(LanguageModel&&) noexcept;
  LanguageModel& operator=(LanguageModel&&) noexcept;

  ModelInfo info() const;
  // What is in force: `context` and `threads` are never 0 here.
  EngineOptions options() const;
  std::vector<std::int32_t> tokenize(std::string_view text, SpecialTokens special = SpecialTokens::kAsText) const;
  std::string detokenize(std::span<const std::int32_t> tokens) const;

 private:
  friend class Session;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

enum class StopReason : std::uint8_t {
  kEnd,         // the model ended its turn
  kLength,      // max_tokens
  kStopString,  // one of GenerationOptions::stop
  kCancelled,   // by a callback
};
std::string_view stop_reason_name(StopReason reason);  // "end", "length", "stop", "cancelled"

// What the KV method did for a session since it began; zeros under full attention.
struct KvMethodStats {
  struct Layer {
    bool dense = false;          // attends everything
    double achieved_budget = 0;  // tokens that a KV head read a step, mean
    double correction_rate = 0;  // share of (step, KV head) whose speculative selection was corrected
    // Of the tokens that were there when prefills ended, the share that was kept (or, where nothing is dropped, that
    // the budget is of them); 1 in dense layers and where no prefill ended.
    double kept_share = 1;
  };
  std::vector<Layer> layers;
  double kv_bytes_per_step = 0, index_bytes_per_step = 0;  // read by attention, and to select
  std::int64_t index_bytes = 0;                            // held
  std::int64_t selections = 0;                             // by (step, layer, KV head): made with the step's own query
  std::int64_t reused = 0;                                 // made with the query of the step before
  std::int64_t correction_checks = 0, corrections = 0;     // of the reused: looked at by a gate, and made anew
  double correction_rate = 0;
  std::int64_t dropped_tokens = 0;  // for good, summed over layers and KV heads
  double prefill_end_seconds = 0;   // spent on what prefills' ends decide
  std::int64_t selected_units = 0, replaced_units = 0;
  double turnover = 0;  // share of the selected units that the step before had not selected
  // Of the selected units those that were not where attention reads them (on a device: not in its slots); those that
  // were copied there, which with unit_fetch=4 are their neighbours too. What came from the host's memory took so many
  // bytes through the device's link.
  std::int64_t missing_units = 0, recalled_units = 0, host_to_device_bytes = 0;
  std::int64_t kv_bytes_read = 0;  // by attention, in all steps
  // EngineOptions::audit_every: means over the audited (step, layer, KV head).
  std::int64_t audits = 0;
  double audit_recall = 0;  // share of the tokens with the largest true attention that were read
  double audit_mass = 0;    // true attention probability of the tokens that were read
  double audit_error = 0;   // relative L2 error of the attention output
};

struct AnswerStats {
  std::int64_t prompt_tokens = 0;  // computed for this turn
  std::int64_t shared_tokens = 0;  // that earlier turns or the session it was forked from had computed
  std::int64_t answer_tokens = 0;
  double prefill_seconds = 0;     // up to the first token of the answer
  double decode_seconds = 0;      // from then on
  std::int64_t decode_steps = 0;  // forward passes in decode_seconds, the one that brought the end included
  std::int64_t kv_bytes = 0;      // keys and values of the whole session
  KvMethodStats method;
};

struct Answer {
  std::string text;
  std::vector<std::int32_t> tokens;
  StopReason stopped = StopReason::kEnd;
  AnswerStats stats;
};

// What ask() calls while it works. Each may be empty. An exception of a callback ends the answer and reaches the caller
// of ask().
struct AskCallbacks {
  // The next piece of the answer, whole characters. False ends the answer.
  std::function<bool(std::string_view text)> on_text;
  // While the prompt is read: "prefill, tokens".
  ProgressFn on_progress;
  // Asked before every step, while the prompt is read too. True ends the answer.
  std::function<bool()> should_stop;
};

// What a file of Session::save() holds, its keys and values unread.
struct SavedSession {
  std::string model_name;  // may be empty
  std::string architecture;
  std::string kv_cache_dtype;        // a model that is to go on with it has to be started with the same
  std::int64_t tokens = 0;           // so far
  std::int64_t computed_tokens = 0;  // whose keys and values are there
  bool document_waits = false;       // a document was read, and no question asked
};
// Errors  as Session::restore(), but for what only a model can tell.
SavedSession saved_session(const std::filesystem::path& path);

// A conversation: a growing sequence of tokens whose keys and values are kept.
class Session {
 public:
  explicit Session(const LanguageModel& model);
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  // Reads a document now, so that questions about it answer at once: the next ask() puts its question after it. In the
  // first turn of a session only, and once.
  //
  // Errors  kRequest: not the first turn, empty, longer than the context.
  void read(const Turn& document, const AskCallbacks& callbacks = {});
  // Appends the turn and generates the answer.
  //
  // Errors  kRequest: nothing asked, prompt and answer longer than the context. kOption: sampling options.
  // The session stands where it stood before then.
  Answer ask(const Turn& turn, const GenerationOptions& options = {}, const AskOptions& how = {},
             const AskCallbacks& callbacks = {});
  // A second session that goes on from here. Shares keys and values; costs one forward pass of one token.
  Session fork();

  // Writes everything needed to go on (tokens, keys and values, random numbers, a document that waits for its question)
  // to a file. One that stands there is replaced when the new one is whole and on the disk; on an error it stays.
  //
  // Errors  kRequest: no turn yet. kFile: the file cannot be written.
  void save(const std::filesystem::path& path) const;
  // The session that was saved, with nothing to compute anew: it answers as the saved one would have. Sessions of the
  // model that are not answering may lose keys and values for it where there is no room beside them; they compute them
  // again.
  //
  // Errors  kFile: cannot be read. kFormat: not a session, or damaged. kUnsupported: of another version. kRequest: not
  // of this model, or longer than the context. kResource: no room beside sessions that are answering.
  static Session restore(const LanguageModel& model, const std::filesystem::path& path);

  // Tokens that asking `turn` would put before its answer. Errors  as ask().
  std::int64_t count_tokens(const Turn& turn, const AskOptions& how = {}) const;
  // All tokens so far.
  std::vector<std::int32_t> tokens() const;

 private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme
