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
#include <string_view>
#include <utility>

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
int read_key(EditLine*, wchar_t* key) {
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
    el_source(edit_.get(), nullptr);  // ~/.editrc
  }
  ~TerminalReader() override { save_history(); }
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

LineReader::End next_entry(LineReader& reader, std::string& entry) {
  entry.clear();
  std::string line;
  for (const char* prompt = "> ";; prompt = ". ") {
    const LineReader::End end = reader.next(prompt, line);
    // What a backslash promised to go on is complete where the input ends.
    if (end == LineReader::End::kEnd && !entry.empty()) return LineReader::End::kLine;
    if (end != LineReader::End::kLine) return end;
    if (!line.ends_with('\\')) {
      entry += line;
      return LineReader::End::kLine;
    }
    line.back() = '\n';
    entry += line;
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
