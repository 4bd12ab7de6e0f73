// Chats: through a pipe, and on a terminal as somebody types.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "apps/mneme/run/chat_command.h"
#include "apps/mneme/run/chat_line.h"
#include "tests/apps/mneme/program.h"
#include "tests/progress.h"

namespace mneme::cli_test {
namespace {

using cli::ChatLine;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

const std::string kAboutHarbour = "What is the secret number of silver-harbour?";
const std::string kAboutLantern = "What is the secret number of copper-lantern?";

// Some 3,000 tokens of prose with two facts.
std::string document() {
  std::istringstream demo(read_file(MNEME_DEMO_FILE));
  std::string text;
  for (std::string line; text.size() < 13'000 && std::getline(demo, line);) {
    if (line.find("secret number") == line.npos) text += line + "\n";
  }
  const auto put = [&](std::size_t where, const std::string& sentence) {
    text.insert(text.find('\n', where) + 1, sentence + "\n");
  };
  put(text.size() / 3, "The secret number of silver-harbour is 48213.");
  put(text.size() / 3 * 2, "The secret number of copper-lantern is 70935.");
  return text;
}

std::vector<std::string> with(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class ChatTest : public ::testing::Test {
 protected:
  std::string book() const { return folder_.write("book.txt", document()); }
  std::string at(const char* name) const { return (folder_.path() / name).string(); }
  Outcome chat(const std::vector<std::string>& arguments, const std::string& lines) const {
    return ask(with({"--chat"}, arguments), {.text = lines});
  }
  TempFolder folder_;
};

TEST(ChatCommand, LinesMeanWhatTheySay) {
  using Kind = ChatLine::Kind;
  const auto expect = [](const char* line, Kind kind, const char* text) {
    const ChatLine parsed = cli::parse_chat_line(line);
    EXPECT_EQ(parsed.kind, kind) << line << ": " << parsed.text;
    if (kind == Kind::kWrong) {
      EXPECT_THAT(parsed.text, HasSubstr(text)) << line;
    } else {
      EXPECT_EQ(parsed.text, text) << line;
    }
  };
  expect("", Kind::kNothing, "");
  expect(" \t\r", Kind::kNothing, "");
  expect("  why? ", Kind::kQuestion, "why?");
  expect("one\ntwo", Kind::kQuestion, "one\ntwo");
  expect(" /usr is what?", Kind::kQuestion, "/usr is what?");
  expect("/* a comment\n*/ what is it?", Kind::kQuestion, "/* a comment\n*/ what is it?");
  expect("/load  a book.txt ", Kind::kLoad, "a book.txt");
  expect("/save x", Kind::kSave, "x");
  expect("/restore x", Kind::kRestore, "x");
  expect("/stats", Kind::kStats, "");
  expect("/reset ", Kind::kReset, "");
  expect("/help", Kind::kHelp, "");
  expect("/quit", Kind::kQuit, "");
  expect("/load", Kind::kWrong, "/load FILE: expected the name of a file");
  expect("/stats now", Kind::kWrong, "/stats: expected nothing after it, found \"now\"");
  expect("/usr is what?", Kind::kWrong, "there is no command \"/usr\"");
  expect("/", Kind::kWrong, "there is no command \"/\"");
  for (const char* name : {"/load FILE", "/stats", "/reset", "/save FILE", "/restore FILE", "/help", "/quit"})
    EXPECT_THAT(cli::chat_help(), HasSubstr(name));
}

TEST_F(ChatTest, TheDocumentIsComputedOnceAndEveryQuestionAlone) {
  const Outcome o = chat({"-f", book()}, kAboutHarbour + "\n" + kAboutLantern + "\n/stats\n");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, "48213\n70935\n") << "answers, and nothing else";
  // <|end|><|user|> newline, the question, <|end|><|assistant|>, and the last token of the first answer.
  EXPECT_THAT(o.err, HasSubstr("the last question: 17 tokens computed"));
  EXPECT_THAT(o.err, HasSubstr("2 questions"));
}

TEST_F(ChatTest, CommandsThroughAPipe) {
  const Outcome o =
      chat({"--no-progress"}, "/load " + book() + "\n" + kAboutHarbour + "\n/save " + at("s") + "\n/reset\n\n" +
                                  kAboutLantern + "\n/restore " + at("s") +
                                  "\nWhat is the secret number \\\nof copper-lantern?\n/quit\nnever asked");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, ::testing::StartsWith("48213\n70935\n"));
  EXPECT_EQ(std::count(o.out.begin(), o.out.end(), '\n'), 3) << o.out;
  EXPECT_THAT(o.err, HasSubstr("Questions and answers are forgotten"));
  EXPECT_THAT(o.err, Not(HasSubstr("A new session")));
  const Outcome twice = chat({"-f", book()}, "/load " + book() + "\n" + kAboutHarbour + "\n");
  EXPECT_EQ(twice.out, "48213\n");
  EXPECT_THAT(twice.err, HasSubstr("A new session"));
}

TEST_F(ChatTest, WhatIsWrongIsSaidAndTheChatGoesOn) {
  const std::string damaged = folder_.write("damaged", "MNEMESES and then nothing that makes sense");
  const Outcome o =
      chat({"-f", book()}, "/foo\n/load " + at("none") + "\n/restore " + damaged + "\n/restore " + MNEME_MODEL_FILE +
                               "\n/save " + at("no/folder") + "\n" + kAboutHarbour + "\n");
  EXPECT_EQ(o.code, 2) << "nobody sat there to see it";
  EXPECT_EQ(o.out, "48213\n");
  for (const char* part : {"there is no command \"/foo\"", "none", "damaged", "expected a saved session", "no/folder"})
    EXPECT_THAT(o.err, HasSubstr(part));
  EXPECT_EQ(chat({"-f", at("none")}, "").code, 2);
  EXPECT_EQ(chat({"-f", "-"}, "").code, 2);
  EXPECT_EQ(chat({"--json"}, "").code, 2);
  EXPECT_EQ(chat({}, "").code, 0) << "nothing asked, nothing wrong";
  EXPECT_EQ(ask({"--chat", "-f", book()}, {.text = kAboutHarbour, .out_path = "/dev/full"}).code, 2);
}

TEST_F(ChatTest, TheContextEndsWithAWord) {
  const Outcome o =
      chat({"-p", "The secret number of silver-harbour is 48213.", "-c", "64", "-n", "100", "--ignore-end"},
           kAboutHarbour + "\n" + kAboutHarbour + "\n/reset\n" + kAboutHarbour + "\n");
  EXPECT_THAT(o.err, HasSubstr("the context of 64 tokens is full"));
  EXPECT_THAT(o.out, ::testing::StartsWith("48213"));
  EXPECT_EQ(o.code, 2);
}

TEST_F(ChatTest, ASeedMeansTheSameChat) {
  const std::vector<std::string> warm = {"-f", book(), "--temperature", "3", "--seed", "5", "-n", "12", "--ignore-end"};
  const std::string lines = "Why?\nWhy?\n";
  const Outcome a = chat(warm, lines), b = chat(warm, lines);
  EXPECT_EQ(a.code, 0) << a.err;
  EXPECT_EQ(a.out, b.out);
}

TEST_F(ChatTest, ASavedSessionAnswersWithoutPrefill) {
  const Outcome first = ask({"-f", book(), "-q", kAboutHarbour, "--save-session", at("s"), "--kv-cache-dtype", "f16"});
  ASSERT_EQ(first.code, 0) << first.err;
  const Outcome live = chat({"-f", book(), "--kv-cache-dtype", "f16"}, kAboutHarbour + "\n" + kAboutLantern + "\n");
  const Outcome o = ask({"--session", at("s"), "-q", kAboutLantern, "--json"});
  ASSERT_EQ(o.code, 0) << o.err;
  const Json json = Json::parse(o.out);
  EXPECT_EQ(json["answer"], "70935");
  EXPECT_EQ(json["prompt_tokens"], 17);
  EXPECT_EQ(json["kv_cache_dtype"], "f16") << "as the session has it";
  EXPECT_EQ(live.out, "48213\n70935\n");
  EXPECT_EQ(chat({"--session", at("s")}, kAboutLantern + "\n").out, "70935\n");

  const Outcome read = chat({"-f", book(), "--save-session", at("read")}, "");
  ASSERT_EQ(read.code, 0) << read.err;
  const Outcome asked = ask({"--session", at("read"), "-q", kAboutHarbour, "--json"});
  ASSERT_EQ(asked.code, 0) << asked.err;
  EXPECT_EQ(Json::parse(asked.out)["answer"], "48213");
  EXPECT_LT(Json::parse(asked.out)["prompt_tokens"], 20);
}

TEST_F(ChatTest, FilesThatAreNoGoodAreRefusedAndNothingIsLeft) {
  const std::string good = at("s");
  ASSERT_EQ(ask({"-p", "The rain", "-n", "2", "--save-session", good}).code, 0);
  std::string bytes = read_file(good);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  const Outcome damaged = ask({"--session", folder_.write("flipped", bytes), "-q", "x"});
  EXPECT_EQ(damaged.code, 2);
  EXPECT_THAT(damaged.err, HasSubstr("the file is damaged"));
  const Outcome cut = ask({"--session", folder_.write("cut", bytes.substr(0, 700)), "-q", "x"});
  EXPECT_EQ(cut.code, 2);
  EXPECT_EQ(ask({"--session", at("none"), "-q", "x"}).code, 2);
  EXPECT_EQ(ask({"--session", MNEME_MODEL_FILE, "-q", "x"}).code, 2);
  EXPECT_EQ(ask({"--session", good, "-q", "x", "--kv-cache-dtype", "f16"}).code, 2);
  EXPECT_EQ(ask({"-p", "x", "--save-session", at("no/folder")}).code, 2);
  EXPECT_EQ(ask({"-p", "x", "--save-session", folder_.path().string()}).code, 2);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 3);
}

// Lines as a terminal or a pipe gives them.
class Lines final : public cli::LineReader {
 public:
  Lines(std::vector<std::string> lines, bool interactive) : lines_(std::move(lines)), interactive_(interactive) {}
  End next(const char*, std::string& line) override {
    if (at_ == lines_.size()) return End::kEnd;
    line = lines_[at_++];
    return End::kLine;
  }
  bool interactive() const override { return interactive_; }

 private:
  std::vector<std::string> lines_;
  std::size_t at_ = 0;
  bool interactive_;
};

std::vector<std::string> entries_of(std::vector<std::string> typed, bool interactive) {
  Lines lines(std::move(typed), interactive);
  std::vector<std::string> all;
  for (std::string entry; cli::next_entry(lines, entry) == cli::LineReader::End::kLine;) all.push_back(entry);
  return all;
}

TEST(ChatEntry, ABlockIsOneQuestion) {
  using ::testing::ElementsAre;
  const std::vector<std::string> typed = {"\"\"\"", "/usr is", "what?", "\"\"\"", "why?"};
  EXPECT_THAT(entries_of(typed, true), ElementsAre("\n\n/usr is\nwhat?\n", "why?"));
  EXPECT_EQ(cli::parse_chat_line(entries_of(typed, true)[0]).text, "/usr is\nwhat?");
  EXPECT_THAT(entries_of({"\"\"\"one", "two\"\"\" ", "\"\"\"three\"\"\""}, true), ElementsAre("\none\ntwo", "\nthree"));
  EXPECT_THAT(entries_of({"\"\"\"\none\n\"\"\""}, true), ElementsAre("\n\none\n")) << "pasted";
  EXPECT_THAT(entries_of({"\"\"\"one", "two"}, true), ElementsAre("\none\ntwo\n")) << "the input ends";
  EXPECT_THAT(entries_of({"one \\", "two", "three\\"}, true), ElementsAre("one \ntwo", "three\n"));
}

TEST(ChatEntry, ThroughAPipeEveryLineIsAQuestion) {
  using ::testing::ElementsAre;
  EXPECT_THAT(entries_of({"\"\"\"", "one", "\"\"\"", "two \\", "three"}, false),
              ElementsAre("\"\"\"", "one", "\"\"\"", "two \nthree"));
}

// A terminal, `mneme run` at its other end, and what it shows.
class Terminal {
 public:
  Terminal(const std::vector<std::string>& arguments, const std::filesystem::path& state) {
    main_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    EXPECT_TRUE(main_ >= 0 && ::grantpt(main_) == 0 && ::unlockpt(main_) == 0);
    const std::string name = ::ptsname(main_), state_home = "XDG_STATE_HOME=" + state.string();
    std::vector<std::string> all = with({MNEME_BINARY, "run", "-m", MNEME_MODEL_FILE}, arguments);
    std::vector<std::string> names = {"TERM=xterm", "PATH=/usr/bin:/bin", "HOME=/nonexistent", state_home};
    std::vector<char*> argv, envp;
    for (std::string& s : all) argv.push_back(s.data());
    for (std::string& s : names) envp.push_back(s.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setsid();
      const int tty = ::open(name.c_str(), O_RDWR);
      const winsize size{.ws_row = 40, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
      if (tty < 0 || ::ioctl(tty, TIOCSCTTY, 0) != 0 || ::ioctl(tty, TIOCSWINSZ, &size) != 0) ::_exit(126);
      for (const int fd : {0, 1, 2}) ::dup2(tty, fd);
      ::execve(argv[0], argv.data(), envp.data());
      ::_exit(127);
    }
  }
  ~Terminal() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(main_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) { EXPECT_EQ(::write(main_, keys.data(), keys.size()), std::ssize(keys)); }
  // Waits for `text` after everything that was waited for before.
  bool shows(const std::string& text) {
    for (;;) {
      const std::size_t where = seen_.find(text, from_);
      if (where != seen_.npos) {
        from_ = where + text.size();
        return true;
      }
      if (!more()) return false;
    }
  }
  // The same for the prompt, and until keys reach the program as they are typed: the prompt is there a moment before.
  bool asks() {
    if (!shows("> ")) return false;
    termios mode{};
    bool open = true;
    wait_until([&] {
      open = ::tcgetattr(main_, &mode) == 0;
      return !open || (mode.c_lflag & ICANON) == 0;
    });
    return open && (mode.c_lflag & ICANON) == 0;
  }
  // -1: it does not end.
  int exit_code() {
    while (more()) {
    }
    int status = 0;
    if (!wait_until([&] { return ::waitpid(pid_, &status, WNOHANG) != 0; })) return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& seen() const { return seen_; }

 private:
  bool more() {
    pollfd wait{.fd = main_, .events = POLLIN, .revents = 0};
    if (!wait_until([&] { return ::poll(&wait, 1, 1000) != 0; }, std::chrono::milliseconds(0))) return false;
    char bytes[4096];
    const ssize_t n = ::read(main_, bytes, sizeof(bytes));  // an error: nobody is at the other end any more
    if (n > 0) seen_.append(bytes, n);
    return n > 0;
  }

  int main_ = -1;
  pid_t pid_ = -1;
  std::string seen_;
  std::size_t from_ = 0;
};

TEST_F(ChatTest, OnATerminal) {
  {
    Terminal t({"-f", book()}, folder_.path() / "state");
    ASSERT_TRUE(t.shows("prefill")) << t.seen();
    ASSERT_TRUE(t.asks()) << t.seen();
    t.type(kAboutHarbour + "\r");
    ASSERT_TRUE(t.shows("48213\r\n") && t.asks()) << t.seen();
    t.type("\x1b[A\r");  // the line before, again
    ASSERT_TRUE(t.shows("48213") && t.asks()) << t.seen();
    // Characters of several bytes are taken away as one, and the cursor finds back to its place.
    t.type("\xc3\xa4\xe2\x82\xac\x7f\x7fhat is the secret number of copper-lantern?\x01W\r");
    ASSERT_TRUE(t.shows("70935") && t.asks()) << t.seen();
    t.type("What is the secret number \\\rof silver-harbour?\r");
    ASSERT_TRUE(t.shows(". ")) << t.seen();
    ASSERT_TRUE(t.shows("48213") && t.asks()) << t.seen();
    t.type("/nonsense\r");
    ASSERT_TRUE(t.shows("there is no command") && t.asks()) << t.seen();
    t.type("/stats\r");
    ASSERT_TRUE(t.shows("4 questions")) << t.seen();
    ASSERT_TRUE(t.asks()) << t.seen();
    t.type("\x04");
    EXPECT_EQ(t.exit_code(), 0) << t.seen();
  }
  EXPECT_THAT(read_file(folder_.path() / "state/mneme/history"), HasSubstr("copper-lantern"));
  {
    Terminal t({"-f", book()}, folder_.path() / "state");
    ASSERT_TRUE(t.asks()) << t.seen();
    t.type("\x1b[A\x1b[A\x1b[A\x1b[A");  // /stats, /nonsense, of silver..., What is the secret number
    ASSERT_TRUE(t.shows("of silver-harbour?")) << t.seen();
    t.type("\x15/quit\r");
    EXPECT_EQ(t.exit_code(), 0) << t.seen();
  }
  {
    Terminal t({"--no-history"}, folder_.path() / "other");
    ASSERT_TRUE(t.asks()) << t.seen();
    t.type("/quit\r");
    EXPECT_EQ(t.exit_code(), 0) << t.seen();
  }
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "other"));
}

// 40 lines were 40 questions, and as many entries of the history.
TEST_F(ChatTest, APasteOfSeveralLinesIsOneQuestion) {
  {
    Terminal t({"-f", book()}, folder_.path() / "state");
    ASSERT_TRUE(t.shows("\x1b[?2004h")) << t.seen();
    ASSERT_TRUE(t.asks()) << t.seen();
    t.type("\x1b[200~What is the secret number \rof silver-\x07harbour?\r\x1b[201~");
    ASSERT_TRUE(t.shows("What is the secret number") && t.shows("\r\nof silver-harbour?")) << t.seen();
    t.type("\r");
    ASSERT_TRUE(t.shows("48213\r\n") && t.asks()) << t.seen();
    t.type("/stats\r");
    ASSERT_TRUE(t.shows("; 1 question\r\n") && t.asks()) << t.seen();
    t.type("\"\"\"\r" + kAboutLantern + "\r\"\"\"\r");
    ASSERT_TRUE(t.shows("70935\r\n") && t.asks()) << t.seen();
    t.type("half \x1b[200~a\rpaste\x03");  // its end never comes
    ASSERT_TRUE(t.shows("Ctrl-C once more") && t.asks()) << t.seen();
    t.type("/stats\r");
    ASSERT_TRUE(t.shows("; 2 questions\r\n") && t.asks()) << t.seen();
    t.type("/quit\r");
    EXPECT_EQ(t.exit_code(), 0) << t.seen();
    EXPECT_THAT(t.seen(), HasSubstr("\x1b[?2004l"));
  }
  Terminal t({"-f", book()}, folder_.path() / "state");
  ASSERT_TRUE(t.asks()) << t.seen();
  t.type("\x1b[A\x1b[A\x1b[A\x1b[A\x1b[A\x1b[A");  // /quit, /stats, three lines of a block, /stats, the paste
  ASSERT_TRUE(t.shows("/stats") && t.shows("\"\"\"")) << t.seen();
  t.type("\x1b[A\r");
  ASSERT_TRUE(t.shows("48213\r\n") && t.asks()) << t.seen();
  t.type("/quit\r");
  EXPECT_EQ(t.exit_code(), 0) << t.seen();
}

TEST_F(ChatTest, CtrlCEndsTheAnswerAndAtThePromptTwiceTheProgram) {
  Terminal t({"-f", book(), "-n", "20000", "--ignore-end", "--save-session", at("s")}, folder_.path());
  ASSERT_TRUE(t.asks()) << t.seen();
  t.type(kAboutHarbour + "\r");
  ASSERT_TRUE(t.shows("48213")) << t.seen();
  t.type("\x03");
  ASSERT_TRUE(t.shows("(stopped)")) << t.seen();
  ASSERT_TRUE(t.asks()) << t.seen();
  t.type("half a question\x03");
  ASSERT_TRUE(t.shows("Ctrl-C once more") && t.asks()) << t.seen();
  t.type(kAboutLantern + "\r");
  ASSERT_TRUE(t.shows("70935")) << "the first answer is part of the conversation: " << t.seen();
  t.type("\x03");
  ASSERT_TRUE(t.shows("(stopped)")) << t.seen();
  ASSERT_TRUE(t.asks()) << t.seen();
  t.type("\x03");
  ASSERT_TRUE(t.shows("Ctrl-C once more")) << t.seen();
  ASSERT_TRUE(t.asks()) << t.seen();
  t.type("\x03");
  EXPECT_EQ(t.exit_code(), 130) << t.seen();
  EXPECT_TRUE(std::filesystem::exists(at("s"))) << "what there is is saved";
}

}  // namespace
}  // namespace mneme::cli_test
