// mneme tokenize -m MODEL < text: the tokens of a text, or with --decode the text of tokens.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "apps/mneme/commands.h"
#include "apps/mneme/options.h"
#include "apps/mneme/text_input.h"
#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/formats/checkpoint.h"
#include "src/text/tokenizer/tokenizer.h"
#include "src/text/unicode/utf8_step.h"

namespace mneme::cli {
namespace {

struct TokenizeOptions {
  std::string model;
  bool ids = false;
  bool no_bos = false;
  bool special = false;
  bool decode = false;
};

void write_stdout(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fail(ErrorKind::kFile, "standard output: {}", std::strerror(errno));
  }
}

// In double quotes; what is not printable text as \n, \t, \xNN.
std::string in_quotes(std::string_view bytes) {
  std::string out = "\"";
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    const bool plain = step.kind == Utf8Kind::kCharacter && step.code_point >= 0x20 && step.code_point != 0x7F;
    for (const char c : bytes.substr(0, step.length)) {
      if (c == '"' || c == '\\') {
        out += {'\\', c};
      } else if (plain) {
        out += c;
      } else if (c == '\n' || c == '\t' || c == '\r') {
        out += {'\\', c == '\n' ? 'n' : c == '\t' ? 't' : 'r'};
      } else {
        out += fmt::format("\\x{:02x}", byte_of(c));
      }
    }
    bytes.remove_prefix(step.length);
  }
  return out + '"';
}

std::string as_ids(const std::vector<TokenId>& ids) {
  return fmt::format("{}\n", fmt::join(ids, " "));
}

// A line for each token: its id, and its text in quotes, or a special token as it is.
std::string as_table(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string out;
  for (const TokenId id : ids) {
    const std::string text = tokenizer.token_bytes(id, true);
    out += fmt::format("{:>8}  {}\n", id, tokenizer.is_control(id) ? text : in_quotes(text));
  }
  return out;
}

std::vector<TokenId> parse_ids(std::string_view text, const Tokenizer& tokenizer) {
  constexpr std::string_view kSpaces = " \t\r\n,";
  std::vector<TokenId> ids;
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
    if (text.empty()) return ids;
    const std::string_view word = text.substr(0, text.find_first_of(kSpaces));
    TokenId id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || !tokenizer.contains(id)) {
      fail(ErrorKind::kRequest, "token {} of the input: expected an id from 0 to {}, found {}", ids.size() + 1,
           tokenizer.vocab_size() - 1, in_quotes(word.substr(0, 40)));
    }
    ids.push_back(id);
    text.remove_prefix(word.size());
  }
}

void tokenize(const TokenizeOptions& options) {
  const auto tokenizer = Tokenizer::make(Checkpoint::open_tokenizer(options.model));
  const std::string input = read_stdin();
  if (options.decode) return write_stdout(tokenizer->decode(parse_ids(input, *tokenizer), options.special));
  const auto ids = tokenizer->encode(input, {.parse_special = options.special, .add_bos = !options.no_bos});
  write_stdout(options.ids ? as_ids(ids) : as_table(*tokenizer, ids));
}

}  // namespace

void add_tokenize(CLI::App& app, int& code) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Tokenize text from standard input, or decode tokens");
  command
      ->add_option("-m,--model", options->model,
                   "GGUF file (a vocabulary suffices), Hugging Face folder, or tokenizer.json")
      ->required();
  CLI::Option* ids = command->add_flag("--ids", options->ids, "Print ids on one line instead of a table");
  CLI::Option* no_bos = command->add_flag("--no-bos", options->no_bos, "Do not add the beginning-of-sequence token");
  command->add_flag("--special", options->special,
                    "Parse special tokens that the text spells out (\"<|end|>\"); with --decode, print them");
  command->add_flag("--decode", options->decode, "Decode ids to text")->excludes(ids)->excludes(no_bos);
  name_environment(*command);
  command->callback([options, &code] {
    tokenize(*options);
    code = 0;
  });
}

}  // namespace mneme::cli
