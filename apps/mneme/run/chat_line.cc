#include "apps/mneme/run/chat_line.h"

#include <fcntl.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <cwctype>
#include <string_view>
#include <utility>

#include "src/base/ascii.h"
#include "src/base/error.h"
#ifdef MNEME_LINE_EDITING
#include <histedit.h>
#endif

namespace mneme::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kHistoryLines = 1000;

// ---- a pipe, a file, a dumb terminal

class PlainReader final : public LineReader {
 public:
  End next(const char* prompt, std::string& line) override {
    if (interactive()) {
      std::fputs(prompt, stderr);
      std::fflush(stderr);
    }
    for (;;) {
      const std::size_t end = buffer_.find('\n', begin_);
      if (end != buffer_.npos) {
        line = buffer_.substr(begin_, end - begin_);
        begin_ = end + 1;
        return End::kLine;
      }
      if (!fill()) break;
    }
    line = buffer_.substr(begin_);  // the last line need not end
    begin_ = buffer_.size();
    return line.empty() ? End::kEnd : End::kLine;
  }
  bool interactive() const override { return ::isatty(STDIN_FILENO) == 1; }

 private:
  bool fill() {
    char bytes[1 << 12];
    for (;;) {
      const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof(bytes));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail(ErrorKind::kFile, "standard input: cannot be read: {}", std::strerror(errno));
      buffer_.erase(0, std::exchange(begin_, 0));
      buffer_.append(bytes, n);
      return n > 0;
    }
  }

  std::string buffer_;
  std::size_t begin_ = 0;
};

#ifdef MNEME_LINE_EDITING
// ---- a terminal

volatile std::sig_atomic_t g_interrupted = 0;
int g_wake[2] = {-1, -1};  // a pipe: Ctrl-C puts a byte in, so that it is seen whichever thread the signal met

extern "C" void on_prompt_interrupt(int) {
  const int before = errno;
  g_interrupted = 1;
  [[maybe_unused]] const ssize_t n = ::write(g_wake[1], "", 1);
  errno = before;
}

// Ctrl-C is noted, and ends the wait for a key.
class PromptInterrupt {
 public:
  PromptInterrupt() {
    if (g_wake[0] < 0 && ::pipe2(g_wake, O_NONBLOCK | O_CLOEXEC) != 0)
      fail(ErrorKind::kResource, "no pipe: {}", std::strerror(errno));
    char old[16];
    while (::read(g_wake[0], old, sizeof(old)) > 0) {
    }
    g_interrupted = 0;
    struct sigaction action {};
    action.sa_handler = on_prompt_interrupt;
    ::sigaction(SIGINT, &action, &before_);
  }
  ~PromptInterrupt() { ::sigaction(SIGINT, &before_, nullptr); }
  PromptInterrupt(const PromptInterrupt&) = delete;
  PromptInterrupt& operator=(const PromptInterrupt&) = delete;

 private:
  struct sigaction before_ {};
};

// One character from the terminal: 1; 0 at its end; -1 after Ctrl-C. libedit's own reader tries again after a signal.
int read_character(wchar_t* key) {
  std::mbstate_t state{};
  for (;;) {
    pollfd waits[] = {{STDIN_FILENO, POLLIN, 0}, {g_wake[0], POLLIN, 0}};
    const int ready = ::poll(waits, 2, -1);
    if (g_interrupted != 0) return -1;
    if (ready < 0 && errno == EINTR) continue;
    char byte = 0;
    const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return static_cast<int>(n);
    const std::size_t used = std::mbrtowc(key, &byte, 1, &state);
    if (used == static_cast<std::size_t>(-2)) continue;  // half a character
    if (used != static_cast<std::size_t>(-1)) return 1;
    state = {};  // no character at all: left out
  }
}

// Bracketed paste (terminal mode 2004): a terminal puts marks around what is pasted. It stays on between prompts, so that
// a paste during an answer is one question too.
constexpr const char* kPasteOn = "\x1b[?2004h";
constexpr const char* kPasteOff = "\x1b[?2004l";
constexpr std::wstring_view kPasteBegin = L"\x1b[200~";
constexpr std::wstring_view kPasteEnd = L"\x1b[201~";

// Of a pasted text: line ends as '\n', without those at its end; no other control characters, which would be keys here
// and commands to the terminal that shows them.
std::wstring pasted_text(std::wstring_view keys) {
  std::wstring text;
  for (const wchar_t key : keys) {
    if (key == L'\r' || key == L'\n')
      text += L'\n';
    else if (key == L'\t' || std::iswcntrl(key) == 0)
      text += key;
  }
  text.erase(text.find_last_not_of(L'\n') + 1);
  return text;
}

// Inserts all of a paste, line ends included. Its last mark is read, and nothing after it. Returns as read_character().
int insert_paste(EditLine* edit) {
  std::wstring keys;
  while (!keys.ends_with(kPasteEnd)) {
    wchar_t key = 0;
    if (const int n = read_character(&key); n <= 0) return n;
    keys += key;
  }
  keys.resize(keys.size() - kPasteEnd.size());
  if (const std::wstring text = pasted_text(keys); !text.empty()) el_winsertstr(edit, text.c_str());
  return 1;
}

// The next key. The mark that begins a paste is bound to drawing the line again: before its last character is returned,
// the paste is inserted. A function of our own, bound to the mark, would do; libedit never frees its name.
int read_key(EditLine* edit, wchar_t* key) {
  static std::wstring mark;
  const int n = read_character(key);
  if (n <= 0) return n;
  if (*key == kPasteBegin.front()) mark.clear();
  mark += *key;
  if (!kPasteBegin.starts_with(mark)) mark.clear();
  if (mark != kPasteBegin) return n;
  mark.clear();
  return insert_paste(edit);
}

class TerminalReader final : public LineReader {
 public:
  explicit TerminalReader(fs::path history_file) : history_file_(std::move(history_file)) {
    // Keys come as UTF-8, whatever the environment forgot to say.
    if (std::setlocale(LC_CTYPE, "") == nullptr || std::string_view(::nl_langinfo(CODESET)) != "UTF-8")
      std::setlocale(LC_CTYPE, "C.UTF-8");
    edit_.reset(el_init("mneme", stdin, stderr, stderr));
    history_.reset(history_init());
    if (!edit_ || !history_) fail(ErrorKind::kResource, "no memory for line editing");
    HistEvent event;
    history(history_.get(), &event, H_SETSIZE, kHistoryLines);
    history(history_.get(), &event, H_SETUNIQUE, 1);
    if (!history_file_.empty()) history(history_.get(), &event, H_LOAD, history_file_.c_str());
    el_set(edit_.get(), EL_CLIENTDATA, this);
    el_set(edit_.get(), EL_EDITOR, "emacs");
    el_set(edit_.get(), EL_SIGNAL, 1);  // leaves the terminal as it found it, draws again after a change of size
    el_set(edit_.get(), EL_HIST, history, history_.get());
    el_set(edit_.get(), EL_PROMPT, &TerminalReader::prompt_of);
    el_set(edit_.get(), EL_GETCFN, &read_key);
    el_set(edit_.get(), EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(edit_.get(), EL_BIND, "\\e[200~", "ed-redisplay", nullptr);
    el_source(edit_.get(), nullptr);  // ~/.editrc
    show(kPasteOn);
  }
  ~TerminalReader() override {
    show(kPasteOff);
    save_history();
  }
  TerminalReader(const TerminalReader&) = delete;
  TerminalReader& operator=(const TerminalReader&) = delete;

  End next(const char* prompt, std::string& line) override {
    const PromptInterrupt interrupt;
    prompt_ = prompt;
    int n = 0;
    const char* const typed = el_gets(edit_.get(), &n);
    if (g_interrupted != 0) {
      std::fputc('\n', stderr);
      return End::kInterrupt;
    }
    if (typed == nullptr || n <= 0) {
      std::fputc('\n', stderr);
      return End::kEnd;
    }
    line.assign(typed, n);
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    HistEvent event;
    if (line.find_first_not_of(" \t") != line.npos) history(history_.get(), &event, H_ENTER, line.c_str());
    return End::kLine;
  }
  bool interactive() const override { return true; }

 private:
  static void show(const char* keys) {
    std::fputs(keys, stderr);
    std::fflush(stderr);
  }
  static char* prompt_of(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return const_cast<char*>(static_cast<TerminalReader*>(self)->prompt_);
  }

  // A history that cannot be kept is no reason to disturb anybody.
  void save_history() {
    if (history_file_.empty()) return;
    std::error_code ignored;
    fs::create_directories(history_file_.parent_path(), ignored);
    const mode_t before = ::umask(077);
    HistEvent event;
    history(history_.get(), &event, H_SAVE, history_file_.c_str());
    ::umask(before);
  }

  struct EndEdit {
    void operator()(EditLine* e) const { el_end(e); }
  };
  struct EndHistory {
    void operator()(History* h) const { history_end(h); }
  };
  fs::path history_file_;
  const char* prompt_ = "";
  std::unique_ptr<History, EndHistory> history_;
  std::unique_ptr<EditLine, EndEdit> edit_;
};

#endif  // MNEME_LINE_EDITING

}  // namespace

std::unique_ptr<LineReader> make_line_reader([[maybe_unused]] const fs::path& history) {
#ifdef MNEME_LINE_EDITING
  const char* terminal = std::getenv("TERM");
  const bool can_edit = terminal != nullptr && *terminal != '\0' && std::string_view(terminal) != "dumb";
  if (can_edit && ::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1)
    return std::make_unique<TerminalReader>(history);
#endif
  return std::make_unique<PlainReader>();
}

namespace {

constexpr std::string_view kBlock = "\"\"\"";

// A block ends with a second mark, in whatever line.
bool is_open_block(std::string_view entry) {
  return entry.starts_with(kBlock) && (entry.size() < 2 * kBlock.size() || !trimmed(entry).ends_with(kBlock));
}

std::string without_block_marks(std::string_view entry) {
  entry.remove_prefix(kBlock.size());
  if (const std::string_view rest = trimmed(entry); rest.ends_with(kBlock))
    entry = entry.substr(0, entry.rfind(kBlock));
  return '\n' + std::string(entry);  // a question, even where it begins with /
}

}  // namespace

LineReader::End next_entry(LineReader& reader, std::string& entry) {
  entry.clear();
  std::string line;
  for (const char* prompt = "> ";; prompt = ". ") {
    const LineReader::End end = reader.next(prompt, line);
    if (end == LineReader::End::kInterrupt) return end;
    // What a backslash or a block promised to go on is complete where the input ends.
    const bool ends = end == LineReader::End::kEnd;
    if (ends && entry.empty()) return end;
    if (!ends) entry += line;
    const bool block = reader.interactive() && entry.starts_with(kBlock);
    if (block && !ends && is_open_block(entry)) {
      entry += '\n';
      continue;
    }
    if (block) entry = without_block_marks(entry);
    if (ends || block || !entry.ends_with('\\')) return LineReader::End::kLine;
    entry.back() = '\n';
  }
}

fs::path history_path() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return fs::path(state) / "mneme" / "history";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return fs::path(home) / ".local" / "state" / "mneme" / "history";
  return {};
}

}  // namespace mneme::cli
