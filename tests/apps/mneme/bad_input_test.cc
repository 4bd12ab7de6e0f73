// What the world gets wrong: exit code 2, a message that names it, nothing on standard output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/apps/mneme/program.h"

namespace mneme::cli_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

void expect_refusal(const Outcome& o, const std::vector<std::string>& parts) {
  EXPECT_EQ(o.code, 2) << o.err;
  EXPECT_THAT(o.out, IsEmpty());
  EXPECT_THAT(o.err, StartsWith("mneme: error: "));
  for (const std::string& part : parts) EXPECT_THAT(o.err, HasSubstr(part));
}

class BadInput : public ::testing::Test {
 protected:
  TempFolder folder_;
};

TEST_F(BadInput, ModelFiles) {
  const std::string missing = (folder_.path() / "no.gguf").string();
  expect_refusal(mneme({"run", "-m", missing, "-p", "x"}), {missing, "No such file"});
  expect_refusal(mneme({"inspect", missing}), {missing});
  expect_refusal(mneme({"run", "-m", folder_.path().string(), "-p", "x"}), {folder_.path().string(), "config.json"});
  expect_refusal(mneme({"run", "-m", folder_.write("empty.gguf", ""), "-p", "x"}), {"empty.gguf"});
  expect_refusal(
      mneme({"run", "-m", folder_.write("text.gguf", "this is no model, but it is long enough to look at"), "-p", "x"}),
      {"text.gguf"});
}

TEST_F(BadInput, TruncatedModels) {
  const std::string whole = read_file(MNEME_MODEL_FILE);
  ASSERT_GT(whole.size(), 1'000'000u);
  for (std::size_t n :
       {std::size_t{3}, std::size_t{23}, std::size_t{1000}, std::size_t{200'000}, whole.size() / 2, whole.size() - 1}) {
    SCOPED_TRACE(n);
    expect_refusal(mneme({"run", "-m", folder_.write("cut.gguf", whole.substr(0, n)), "-p", "x"}), {"cut.gguf"});
    expect_refusal(mneme({"inspect", (folder_.path() / "cut.gguf").string()}), {"cut.gguf"});
  }
}

TEST_F(BadInput, Prompts) {
  expect_refusal(ask({}), {"standard input is empty"});
  expect_refusal(ask({"-f", folder_.write("empty.txt", "")}), {"empty.txt is empty"});
  expect_refusal(ask({"-f", folder_.write("empty.txt", ""), "-q", "why?"}), {"empty.txt is empty"});
  expect_refusal(ask({"-p", ""}), {"--prompt", "expected a text"});
  expect_refusal(ask({"-p", "x", "-q", ""}), {"--ask", "expected a text"});
  expect_refusal(ask({"-f", (folder_.path() / "no.txt").string()}), {"no.txt", "No such file"});
  expect_refusal(ask({"-f", folder_.path().string()}), {"expected a file, found a folder"});
  expect_refusal(ask({"-f", "a", "-p", "b"}), {"--file", "--prompt"});
}

TEST_F(BadInput, ATerminalWithoutAPromptIsNotWaitedFor) {
  expect_refusal(ask({}, {.terminal = true}), {"a prompt is needed", "-p", "-f", "-q"});
  EXPECT_EQ(ask({"-q", "What is the secret number of silver-harbour?", "-n", "2"}, {.terminal = true}).code, 0)
      << "a question alone is a prompt";
}

TEST_F(BadInput, FilesThatAreNoText) {
  expect_refusal(ask({"-f", folder_.write("latin1.txt", "caf\xe9 au lait")}),
                 {"latin1.txt", "UTF-8", "0xe9", "offset 3"});
  expect_refusal(ask({"-f", folder_.write("cut.txt", "caf\xc3")}), {"offset 3"});
  expect_refusal(ask({"-f", folder_.write("binary", std::string("ab\0cd", 5))}), {"zero byte at offset 2", "binary"});
  expect_refusal(ask({"-q", "why?"}, {.text = "\xff\xfe"}), {"standard input", "offset 0"});
  expect_refusal(ask({"-p", "\xed\xa0\x80"}), {"--prompt", "offset 0"});  // a surrogate
}

TEST_F(BadInput, LongerThanTheContext) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "The rain fell upon the roofs. ";
  expect_refusal(ask({"-c", "500", "-p", text}), {"the prompt has ", "room for 500", "--max-model-len"});
  expect_refusal(ask({"-c", "500", "-p", "short", "-n", "600"}), {"600 of the answer", "room for 500", "--max-tokens"});
  for (int i = 0; i < 6; ++i) text += text;
  expect_refusal(ask({"-f", folder_.write("long.txt", text)}), {"--max-model-len", "the model was made for"});
}

TEST_F(BadInput, TheAnswerTakesWhatTheContextLeaves) {
  const Outcome o = ask({"-c", "40", "-p", "The rain fell upon the roofs.", "--ignore-end", "--json"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, AllOf(HasSubstr("\"stopped\":\"length\""), HasSubstr("\"context\":40")));
}

TEST_F(BadInput, OptionValues) {
  const struct {
    std::vector<std::string> arguments;
    std::vector<std::string> parts;
  } kCases[] = {
      {{"-n", "0"}, {"--max-tokens", "from 1 to", "\"0\""}},
      {{"-n", "many"}, {"--max-tokens", "integer", "\"many\""}},
      {{"-n", "99999999999999999999"}, {"--max-tokens"}},
      {{"--threads", "-1"}, {"--threads", "\"-1\""}},
      {{"--threads", "5000"}, {"--threads", "from 1 to 1024"}},
      {{"-c", "1.5"}, {"--max-model-len", "integer"}},
      {{"-b", "0"}, {"--max-num-batched-tokens"}},
      {{"--kv-cache-dtype", "f32"}, {"--kv-cache-dtype", "bf16 or f16 or int8 or fp8", "\"f32\""}},
      {{"--question", "later"}, {"--question", "prefill or decode"}},
      {{"--temp", "-1"}, {"--temp", "0 or more"}},
      {{"--temp", "nan"}, {"--temp"}},
      {{"--top-p", "1.5"}, {"--top-p", "from 0 to 1", "\"1.5\""}},
      {{"--min-p", "-0.5"}, {"--min-p", "from 0 to 1"}},
      {{"--top-k", "-3"}, {"--top-k"}},
      {{"--presence-penalty", "much"}, {"--presence-penalty", "a number"}},
      {{"--repetition-penalty", "0"}, {"repetition"}},
      {{"--seed", "abc"}, {"--seed"}},
      {{"--stop", ""}, {"--stop", "expected a text"}},
      {{"--special"}, {"--special", "--raw"}},
      {{"--no-such-option"}, {"--no-such-option"}},
      {{"stray"}, {"stray"}},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.arguments.front() + " " + c.arguments.back());
    std::vector<std::string> arguments = {"-p", "x"};
    arguments.insert(arguments.end(), c.arguments.begin(), c.arguments.end());
    expect_refusal(ask(arguments), c.parts);
  }
}

// Full attention would read everything, and say nothing.
TEST_F(BadInput, ABudgetWithoutAMethod) {
  const std::vector<std::vector<std::string>> cases = {{"--kv-budget", "64"}, {"--kv-sink", "4"},
                                                       {"--kv-recent", "4"},  {"--dense-layers", "0"},
                                                       {"--kv", "budget=64"}, {"--kv", "full:sink=4"}};
  for (const std::vector<std::string>& given : cases) {
    std::vector<std::string> run = {"-p", "x"}, serve = {"serve", "-m", MNEME_MODEL_FILE};
    run.insert(run.end(), given.begin(), given.end());
    serve.insert(serve.end(), given.begin(), given.end());
    expect_refusal(ask(run), {given[0] + ": full attention has no such setting", "name a method (--kv;"});
    expect_refusal(mneme(serve), {given[0] + ": full attention has no such setting", "name a method (--kv;"});
  }
}

TEST_F(BadInput, EnvironmentVariables) {
  expect_refusal(ask({"-p", "x"}, {.text = "", .env = {{"MNEME_KV_CACHE_DTYPE", "f32"}}}),
                 {"bf16 or f16 or int8 or fp8", "\"f32\""});
  expect_refusal(ask({"-p", "x"}, {.text = "", .env = {{"MNEME_THREADS", "none"}}}), {"--threads"});
  expect_refusal(ask({"-p", "x"}, {.text = "", .env = {{"MNEME_CPU_ISA", "sse9"}}}),
                 {"MNEME_CPU_ISA", "avx512_vnni", "sse9"});
}

// Names that are nearly right: the message says which one was meant.
TEST_F(BadInput, MethodsThatAreMistyped) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"Quest", "quest"},
                                                                  {"questt", "quest"},
                                                                  {"h20", "h2o"},
                                                                  {"FREEKV", "freekv"},
                                                                  {"freekv.longbnch", "freekv.longbench"}};
  for (const auto& [given, meant] : cases)
    expect_refusal(ask({"-p", "x", "--kv-method", given}),
                   {"no KV method is called '" + given + "': did you mean '" + meant + "'?"});
  expect_refusal(ask({"-p", "x", "--kv-method", "elephant"}), {"'elephant'; there are: full, window"});
}

TEST_F(BadInput, OptionsThatAreMistyped) {
  expect_refusal(ask({"-p", "x", "--kvmethod", "quest"}),
                 {"unexpected arguments: --kvmethod quest", "--kvmethod: did you mean --kv-method?"});
  expect_refusal(ask({"-p", "x", "--KV-Method=quest"}), {"--KV-Method: did you mean --kv-method?"});
  expect_refusal(mneme({"bench", "decode", "--dept", "4"}), {"did you mean --depth?", "mneme bench decode --help"});
  expect_refusal(ask({"-p", "x", "--one", "two", "--three"}), {"unexpected arguments: --one two --three"});
}

TEST_F(BadInput, SubcommandsThatAreMistypedOrElsewhere) {
  expect_refusal(mneme({"rnu", "-p", "x"}), {"no subcommand \"rnu\": did you mean \"run\"?"});
  expect_refusal(mneme({"Serve"}), {"did you mean \"serve\"?"});
  expect_refusal(mneme({"bench", "gathr"}), {"no subcommand \"gathr\": did you mean \"gather\"?"});
  expect_refusal(mneme({"chat"}), {"no subcommand \"chat\": mneme run -m MODEL starts a chat"});
  expect_refusal(mneme({"chat", "-m", MNEME_MODEL_FILE}), {"mneme run -m MODEL starts a chat"});
  expect_refusal(mneme({"fly"}), {"no subcommand \"fly\": expected one of run, serve"});
}

TEST_F(BadInput, ABudgetThatIsTooSmallSaysTheSmallest) {
  expect_refusal(ask({"-p", "x", "--kv-method", "quest", "--kv-budget", "16"}), {"budget 16", "at least 32"});
  expect_refusal(ask({"-p", "x", "--kv-method", "quest", "--kv-budget", "31", "--kv-sink", "16"}), {"at least 48"});
  EXPECT_EQ(ask({"-p", "x", "-n", "1", "--kv-method", "quest", "--kv-budget", "32"}).code, 0) << "and that is right";
}

TEST_F(BadInput, ARepositoryInPlaceOfAFile) {
  for (const std::string command : {"run", "serve"})
    expect_refusal(mneme({command, "-m", "Qwen/Qwen3-8B"}),
                   {"Qwen/Qwen3-8B: no such file", "-hf Qwen/Qwen3-8B fetches it"});
  expect_refusal(mneme({"inspect", "Qwen/Qwen3-8B"}), {"-hf Qwen/Qwen3-8B fetches it"});
  const std::string out = (folder_.path() / "out.gguf").string();
  expect_refusal(mneme({"convert", "Qwen/Qwen3-8B", out}), {"-hf Qwen/Qwen3-8B fetches it"});
  expect_refusal(mneme({"convert", "-hf", "Qwen3-8B", out}), {"OWNER/NAME"});
  expect_refusal(mneme({"convert", "-hf", "Qwen/Qwen3-8B"}), {"to is required"});
  expect_refusal(mneme({"convert", MNEME_MODEL_FILE, "-hf", "Qwen/Qwen3-8B", out}), {"from and -hf", "one of the two"});
  const std::string missing = (folder_.path() / "Qwen3-8B").string();
  EXPECT_THAT(mneme({"run", "-m", missing, "-p", "x"}).err, ::testing::Not(HasSubstr("-hf"))) << "a path";
}

TEST_F(BadInput, TheProgramAlonePrintsItsHelp) {
  const Outcome o = mneme({});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, AllOf(HasSubstr("Usage: mneme"), HasSubstr("serve")));
  EXPECT_THAT(o.err, IsEmpty());
}

TEST_F(BadInput, Subcommands) {
  expect_refusal(mneme({"run", "-p", "x"}), {"--model"});
  expect_refusal(mneme({"convert", MNEME_MODEL_FILE}), {"to is required"});
  expect_refusal(mneme({"convert"}), {"from is required, or -hf"});
}

TEST_F(BadInput, OutputThatCannotBeWritten) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const Outcome o = ask({"-p", "The rain"}, {.text = "", .out_path = "/dev/full"});
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, AllOf(StartsWith("mneme: error: "), HasSubstr("standard output"), HasSubstr("No space left")));
  EXPECT_EQ(mneme({"inspect", MNEME_MODEL_FILE}, {.text = "", .out_path = "/dev/full"}).code, 2);
  EXPECT_EQ(mneme({"--help"}, {.text = "", .out_path = "/dev/full"}).code, 2);
}

TEST_F(BadInput, ConvertLeavesNothingHalfWritten) {
  const std::string out = (folder_.path() / "missing" / "out.gguf").string();
  expect_refusal(mneme({"convert", MNEME_MODEL_FILE, out}), {out});
  expect_refusal(mneme({"convert", MNEME_MODEL_FILE, folder_.path().string()}), {folder_.path().string()});
  expect_refusal(mneme({"convert", MNEME_MODEL_FILE, (folder_.path() / "o.gguf").string(), "--type", "iq4_xs"}),
                 {"--type iq4_xs: expected one of q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k, "
                  "iq4_nl, mxfp4, bf16, f16, f32"});
  const std::string cut = folder_.write("cut.gguf", read_file(MNEME_MODEL_FILE).substr(0, 5'000'000));
  const std::string copy = (folder_.path() / "copy.gguf").string();
  expect_refusal(mneme({"convert", cut, copy}), {"cut.gguf"});
  EXPECT_FALSE(fs::exists(copy));
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder_.path())) files += entry.is_regular_file();
  EXPECT_EQ(files, 1) << "only cut.gguf is left";
}

}  // namespace
}  // namespace mneme::cli_test
