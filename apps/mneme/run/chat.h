// The chat of `mneme run`: several turns over one document.
#pragma once

#include <optional>
#include <string>

#include "apps/mneme/run/run_report.h"
#include "mneme/mneme.h"

namespace mneme::cli {

struct ChatOptions {
  std::string document, document_name;  // read before the first question; may be empty
  std::string question;                 // asked first; may be empty
  std::string system;
  std::string session;  // a session file to continue; may be empty
  GenerationOptions generation;
  std::optional<int> max_tokens;  // of an answer; none: kDefaultMaxTokens
  AskOptions how;
  bool stats = false;     // after every turn
  bool progress = true;   // a bar while a document is read
  bool history = true;    // keep questions for the next chat
  std::string save_path;  // saves the session at the end; may be empty
};

inline constexpr int kDefaultMaxTokens = 256;

// Answers go to standard output, everything else to standard error. Returns the exit code: 0; 130 after two Ctrl-C; 2
// after an error without a terminal.
//
//   report  of the model and of loading it
//
// Errors  before the first question, as Session::restore(), read(). kFile: standard input, standard
// output, save_path.
int chat(const LanguageModel& model, const ChatOptions& options, const RunReport& report);

}  // namespace mneme::cli
