// Mneme's C++ API: open a model, start it, ask questions about documents.
//
//   mneme::LanguageModel model("model.gguf");
//   mneme::Session session(model);
//   mneme::Answer answer = session.ask({.document = book, .question = "Who is the widow Carey?"});
//
//   for (const std::string& piece : session.stream({.question = "Whom does she marry?"})) std::cout << piece;
//
// Errors   whatever the world gets wrong throws mneme::Error (mneme/error.h). The library prints nothing.
// Threads  sessions of one model may be used from different threads at the same time: answers asked for at once are
//          computed in one batch. One session, and its streams, belong to one thread at a time. A thread that waits for
//          its answer computes for all others too, with the threads that the model started.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mneme/error.h"
#include "mneme/options.h"
#include "mneme/progress.h"
#include "mneme/recipe.h"
#include "mneme/scores.h"
#include "mneme/stats.h"

namespace mneme {

// This library's version, "0.1.0".
std::string_view version();

struct ModelInfo {
  std::string name;          // as the file calls it; may be empty
  std::string architecture;  // "llama", "qwen3", "gpt-oss", ... (docs/reference/formats.md)
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

// The first turn of a session as tokens (ModelFile::prepare): a long document is tokenised once, to be counted before
// the model starts and to be asked.
class PreparedTurn {
 public:
  ~PreparedTurn();
  PreparedTurn(PreparedTurn&&) noexcept;
  PreparedTurn& operator=(PreparedTurn&&) noexcept;

  // That it puts before its answer, framing included.
  std::int64_t n_tokens() const;

 private:
  friend class ModelFile;
  friend class Session;
  struct Impl;
  explicit PreparedTurn(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
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
  // Frames turns by this chat template (Jinja, its text, or the name of one of the model's) instead of the model's own.
  //
  // Errors  kFormat, kRequest: it cannot be read or rendered, or does not show what the user says.
  void set_chat_template(std::string text);
  std::vector<std::int32_t> tokenize(std::string_view text, SpecialTokens special = SpecialTokens::kAsText) const;
  std::string detokenize(std::span<const std::int32_t> tokens) const;
  // Tokens that `turn` takes as the first one of a session, framing included.
  std::int64_t count_tokens(const Turn& turn, const AskOptions& options = {}) const;
  // For Session::ask() of the model that takes this file over, and for the chat template that is set now.
  //
  // Errors  kRequest: nothing asked.
  PreparedTurn prepare(Turn turn, AskOptions options = {}) const;

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
  friend struct LanguageModelAccess;
  struct Impl;
  explicit LanguageModel(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

struct Answer {
  std::string text;
  std::vector<std::int32_t> tokens;
  StopReason stopped = StopReason::kEnd;
  std::vector<TokenScore> scores;  // AskOptions::top_logprobs: one a token of the answer
  AnswerStats stats;
};

// What ask() calls while it works, on the calling thread. Each may be empty. An exception of a callback ends the answer
// and reaches the caller of ask(). Where other threads compute at the same time, an answer that a callback ends may
// have more tokens than were told: Answer has all of them.
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
  KvDtype kv_cache_dtype = KvDtype::kBf16;  // a model that restores it must be started with the same
  std::int64_t tokens = 0;                  // so far
  std::int64_t computed_tokens = 0;         // whose keys and values are there
  bool document_waits = false;              // a document was read, and no question asked
};
// Errors  as Session::restore(), but for what only a model can tell.
SavedSession saved_session(const std::filesystem::path& path);

// An answer that is read piece by piece.
//
//   TextStream stream = session.stream({.question = "Who is the widow Carey?"});
//   for (const std::string& piece : stream) std::cout << piece;
//   std::cerr << stream.answer().stats.answer_tokens;
//
// Nothing is computed until a piece is asked for, unless other threads ask the model at the same time: then the answer
// goes on with theirs, up to max_tokens.
class TextStream {
 public:
  // Ends an answer that has not ended, before the next step; the session keeps what was computed of it.
  ~TextStream();
  TextStream(TextStream&&) noexcept;
  TextStream& operator=(TextStream&&) noexcept;

  // The next piece, whole UTF-8 characters, never empty; none: the answer has ended.
  //
  // Errors  kResource, kDevice: nothing of the failed step counts; the next call tries again.
  std::optional<std::string> next();
  // Ends the answer before the next step. next() gives the pieces computed until then. From any thread.
  void stop();
  // next() has returned none, or its last piece.
  bool done() const;
  // The whole answer, statistics included. Errors  kRequest: it has not ended.
  const Answer& answer() const;

  // An input iterator: one pass, each piece once.
  class Iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = std::string;
    using difference_type = std::ptrdiff_t;
    Iterator() = default;
    explicit Iterator(TextStream& stream) : stream_(&stream), piece_(stream.next()) {}
    const std::string& operator*() const { return *piece_; }
    const std::string* operator->() const { return &*piece_; }
    Iterator& operator++() {
      piece_ = stream_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return !piece_.has_value(); }

   private:
    TextStream* stream_ = nullptr;
    std::optional<std::string> piece_;
  };
  Iterator begin() { return Iterator(*this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  friend class Session;
  struct Impl;
  explicit TextStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct ScoreOptions {
  std::int32_t top = 0;                            // likeliest tokens told with each token of the text
  SpecialTokens special = SpecialTokens::kAsText;  // whether special tokens written in the text are those tokens
  bool logits = false;                             // fill Scores::logits: 4 bytes times vocabulary a token
};

struct Scores {
  std::vector<TokenScore> tokens;  // of the text, in order
  // f32 [tokens, vocabulary], row-major: the logits that tokens[i] was scored under. Empty unless asked for.
  std::vector<float> logits;
};

// A conversation: a growing sequence of tokens whose keys and values are kept.
class Session {
 public:
  // Attends as EngineOptions::kv says.
  explicit Session(const LanguageModel& model);
  // Attends as `kv` says: a document that read() reads is read so, and turns attend so.
  //
  // Errors  kOption: the recipe does not combine, or not with this model.
  Session(const LanguageModel& model, const Recipe& kv);
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
  // Errors  kRequest: nothing asked, prompt and answer longer than the context, a method that the session's keys and
  // values cannot go on with, a stream that has not ended. kOption: sampling options, a recipe that does not combine.
  // The session stands where it stood before then.
  Answer ask(const Turn& turn, const GenerationOptions& options = {}, const AskOptions& how = {},
             const AskCallbacks& callbacks = {});
  // The same for a turn that was tokenised before.
  //
  // Errors  kRequest too: not the first turn of this session, or prepared by another model's file.
  Answer ask(const PreparedTurn& turn, const GenerationOptions& options = {}, const AskCallbacks& callbacks = {});
  // The same, read piece by piece. Until the stream has ended or is destroyed, the session can do nothing else but
  // tokens() and count_tokens().
  //
  // Errors  as ask().
  TextStream stream(const Turn& turn, const GenerationOptions& options = {}, const AskOptions& how = {});

  // Scores `text` as if it followed all tokens of the session, without framing: teacher forcing in one prefill, with
  // full attention unless the session is bound to a method. The session stays as it is. In a session without a turn the
  // text follows the token that begins a sequence; of a model that has none, the first token of the text is not scored
  // and left out.
  //
  // Errors  kRequest: no token to score, longer than the context. kOption: `top` below 0 or above the vocabulary.
  Scores score(std::string_view text, const ScoreOptions& options = {}) const;
  // Logits of the token that follows all tokens of the session, f32 [vocabulary], before any sampling option. Costs one
  // forward pass of one token.
  //
  // Errors  kRequest: no turn yet.
  std::vector<float> logits() const;

  // A second session that goes on from here. Shares keys and values; costs one forward pass of one token.
  //
  // Errors  kRequest: a stream of this session has not ended.
  Session fork();

  // Writes everything needed to go on (tokens, keys and values, random numbers, a document that waits for its question)
  // to a file. One that stands there is replaced when the new one is whole and on the disk; on an error it stays.
  //
  // Errors  kRequest: no turn yet. kFile: the file cannot be written.
  void save(const std::filesystem::path& path) const;
  // The session that was saved, with nothing to compute again: it answers as the saved one would have. Sessions of the
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
  friend class TextStream;
  struct Impl;
  explicit Session(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace mneme
