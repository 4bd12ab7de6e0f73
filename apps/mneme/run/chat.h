// mneme run without a question: several turns over one document.
#pragma once

#include <optional>
#include <string>

#include "mneme/mneme.h"
#include "src/cli/run_report.h"

namespace mneme::cli {

struct ChatOptions {
  std::string document, document_name;  // read before the first question; may be empty
  std::string question;                 // asked first; may be empty
  std::string system;
  std::string session;  // a file to go on from; may be empty
  GenerationOptions generation;
  std::optional<int> max_tokens;  // of an answer; none: kDefaultMaxTokens
  AskOptions how;
  bool stats = false;     // after every turn
  bool progress = true;   // a bar while a document is read
  bool history = true;    // questions are remembered for the next time
  std::string save_path;  // where the session goes at the end; may be empty
};

inline constexpr int kDefaultMaxTokens = 256;

// Answers go to standard output, everything else to standard error. Returns the exit code: 0; 130 after two Ctrl-C; 2
// when something was wrong and nobody sat there to see it.
//
//   report  what is known of the model and of the time before
//
// Errors  what is wrong before the first question: as Session::restore(), read(). kFile: standard input, standard
// output, save_path.
int chat(const LanguageModel& model, const ChatOptions& options, const RunReport& report);

}  // namespace mneme::cli
