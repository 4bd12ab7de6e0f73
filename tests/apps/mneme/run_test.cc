// mneme run on good input: what comes where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/apps/mneme/program.h"
#include "tests/short_document.h"

namespace mneme::cli_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

const std::string& kQuestion = kAboutHarbour;

TEST(Run, AnswersFromAFileAndPrintsNothingElse) {
  const TempFolder folder;
  const std::string file = folder.write("book.txt", kDocument + "\n");
  const Outcome o = ask({"-f", file, "-q", kQuestion});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, "48213\n");
  EXPECT_THAT(o.err, IsEmpty()) << "no statistics were asked for, and standard error is no terminal";
}

TEST(Run, TakesThePromptFromEverywhere) {
  const Input text{.text = kDocument};
  EXPECT_EQ(ask({"-q", kQuestion}, text).out, "48213\n") << "standard input is the default";
  EXPECT_EQ(ask({"-f", "-", "-q", kQuestion}, text).out, "48213\n");
  EXPECT_EQ(ask({"-p", kDocument, "-q", kQuestion}).out, "48213\n");
  EXPECT_EQ(ask({"-p", kDocument + "\n\n\n" + kQuestion}).out, "48213\n") << "question in the prompt";
}

TEST(Run, AQuestionMayBePipedInBesideAFile) {
  const TempFolder folder;
  const std::string file = folder.write("book.txt", kDocument);
  const auto piped = [&](const std::string& input) {
    return run_program(
        {"/bin/sh", "-c", input + " | \"$0\" run -m \"$1\" -f \"$2\" -n 8", MNEME_BINARY, MNEME_MODEL_FILE, file});
  };
  EXPECT_EQ(piped("printf '%s\\n' '" + kQuestion + "'").out, "48213\n");
  EXPECT_EQ(piped("true").out, ask({"-f", file, "-n", "8"}).out) << "nothing was piped in";
}

TEST(Run, ASmallBudgetShrinksDefaultSinksAndWindowAndSaysSo) {
  const Outcome o = ask({"-p", kDocument, "-q", kQuestion, "--kv-method", "freekv", "--kv-budget", "512"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, "48213\n");
  EXPECT_THAT(o.err, HasSubstr("from 512 + 512 to 128 + 128"));
}

TEST(Run, HintsWhereAMethodsDefaultsAreWeak) {
  const auto notes = [](const char* overrides) {
    return ask({"-p", "The rain", "-n", "1", "--kv-method", "louiskv", "--kv", overrides}).err;
  };
  EXPECT_THAT(notes("order=token"), HasSubstr("--kv louiskv:tau=2"));
  EXPECT_THAT(notes("tau=2"), IsEmpty());
}

TEST(Run, ABudgetWithoutAMethodIsRefused) {
  const Outcome o = ask({"-p", kDocument, "--kv-budget", "64"});
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("--kv-budget"));
}

TEST(Run, StatisticsSpeakOfAGateWhereThereIsOne) {
  const auto stats = [](const char* method) {
    std::string document;
    for (int i = 0; i < 8; ++i) document += kDocument + "\n";
    return ask({"-p", document, "-q", kQuestion, "--kv-method", method, "--kv-budget", "128", "--kv-sink", "32",
                "--kv-recent", "32", "--stats"})
        .err;
  };
  EXPECT_THAT(stats("quest"), ::testing::AllOf(HasSubstr("selections made"), Not(HasSubstr("gate"))));
  EXPECT_THAT(stats("freekv"), ::testing::AllOf(HasSubstr("reused"), HasSubstr("the gate flagged")));
}

TEST(Run, ATemplateOfTheUsersChoiceIsNotTheModelsFamily) {
  const Outcome o = ask({"-p", "The rain", "-n", "1", "--json", "--chat-template",
                         "{% for m in messages %}{{ m.content }}\n{% endfor %}"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(Json::parse(o.out)["chat_family"], "template");
}

TEST(Run, EveryEndOfLineAtTheEndOfADocumentIsTheSame) {
  const TempFolder folder;
  const Outcome plain = ask({"-f", folder.write("a", kDocument), "-q", kQuestion, "--json"});
  const Outcome ended =
      ask({"-f", folder.write("b", "\xef\xbb\xbf" + kDocument + "\r\n\n"), "-q", kQuestion, "--json"});
  ASSERT_EQ(plain.code, 0) << plain.err;
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(Json::parse(plain.out)["prompt_tokens"], Json::parse(ended.out)["prompt_tokens"]);
}

TEST(Run, StatisticsGoToStandardError) {
  const Outcome o = ask({"-p", kDocument, "-q", kQuestion, "--stats", "--threads", "2"});
  EXPECT_EQ(o.out, "48213\n");
  EXPECT_THAT(o.err, StartsWith("prompt "));
  for (const char* part :
       {"tokens/s", "answer ", "ended by the model", "memory ", "KV cache (bf16)", "2 threads", "context "})
    EXPECT_THAT(o.err, HasSubstr(part));
}

TEST(Run, JsonIsOneObjectOnOneLine) {
  const Outcome o = ask({"-p", kDocument, "-q", kQuestion, "--json", "--threads", "1", "--kv-cache-dtype", "f16"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.err, IsEmpty());
  EXPECT_EQ(std::count(o.out.begin(), o.out.end(), '\n'), 1);
  const Json json = Json::parse(o.out);
  EXPECT_EQ(json["answer"], "48213");
  EXPECT_EQ(json["stopped"], "end");
  EXPECT_EQ(json["answer_tokens"], 5) << "the model writes digit by digit";
  EXPECT_EQ(json["tokens"].size(), 5u);
  EXPECT_EQ(json["threads"], 1);
  EXPECT_EQ(json["kv_cache_dtype"], "f16");
  EXPECT_EQ(json["architecture"], "llama");
  EXPECT_EQ(json["chat_family"], "needle");
  const int prompt = json["prompt_tokens"];
  EXPECT_GT(prompt, 60);
  EXPECT_LT(prompt, 200);
  // Pages of 32 tokens, 8 layers, 2 KV heads, K and V of 64 values of two bytes.
  EXPECT_EQ(json["kv_bytes"], (prompt + 4 + 31) / 32 * 32 * 8 * 2 * 2 * 64 * 2);
  EXPECT_EQ(json["context"], prompt + 256) << "no more room than this run can need";
  EXPECT_GT(json["peak_memory_bytes"], 1 << 20);
  EXPECT_GT(json["prefill_seconds"], 0.0);
  EXPECT_GT(json["decode_tokens_per_second"], 0.0);
}

TEST(Run, TheQuestionSpanIsWordsOfThePrompt) {
  const std::vector<std::string> start = {"-p", kDocument, "-q", kQuestion, "--question-span"};
  auto with = [&](const std::string& words) {
    std::vector<std::string> all = start;
    all.push_back(words);
    return ask(all);
  };
  const Outcome o = with("silver-harbour");
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("48213"));
  const Outcome unknown = with("words that are not there");
  EXPECT_NE(unknown.code, 0);
  EXPECT_THAT(unknown.err, HasSubstr("--question-span"));
}

TEST(Run, EnvironmentVariablesAreOptionsAndTheCommandLineWins) {
  const Input env{.text = kDocument,
                  .env = {{"MNEME_KV_CACHE_DTYPE", "f16"},
                          {"MNEME_ASK", kQuestion},
                          {"MNEME_THREADS", "1"},
                          {"MNEME_JSON", "1"},
                          {"MNEME_MODEL", MNEME_MODEL_FILE}}};
  Outcome o = mneme({"run", "--threads", "2"}, env);
  ASSERT_EQ(o.code, 0) << o.err;
  const Json json = Json::parse(o.out);
  EXPECT_EQ(json["answer"], "48213");
  EXPECT_EQ(json["kv_cache_dtype"], "f16");
  EXPECT_EQ(json["threads"], 2);
}

TEST(Run, EveryOptionHasAnEnvironmentVariable) {
  const Outcome o = mneme({"run", "--help"});
  ASSERT_EQ(o.code, 0);
  std::istringstream lines(o.out);
  int options = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  -") || line.find("--help") != std::string::npos) continue;
    ++options;
    EXPECT_THAT(line, HasSubstr("(Env:MNEME_")) << line;
  }
  EXPECT_GT(options, 20);
}

TEST(Run, MaxTokensAndStopStringsEndTheAnswer) {
  const std::vector<std::string> start = {"-p", kDocument, "-q", kQuestion, "--json"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), start.begin(), start.end());
    const Outcome o = ask(more);
    EXPECT_EQ(o.code, 0) << o.err;
    return Json::parse(o.out);
  };
  const Json cut = with({"-n", "3"});
  EXPECT_EQ(cut["answer"], "482");
  EXPECT_EQ(cut["stopped"], "length");
  const Json stopped = with({"--stop", "none", "--stop", "13", "--stop", "21"});
  EXPECT_EQ(stopped["answer"], "48") << "21 begins before 13";
  EXPECT_EQ(stopped["stopped"], "stop");
  const Json long_one = with({"--ignore-end", "-n", "12"});
  EXPECT_EQ(long_one["answer_tokens"], 12);
  EXPECT_THAT(long_one["answer"].get<std::string>(), StartsWith("48213"));
}

TEST(Run, TheQuestionGivesTheSameAnswerThroughDecode) {
  const Outcome o = ask({"-p", kDocument, "-q", kQuestion, "--question", "decode", "--stats"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, "48213\n");
}

// Inside an exact prefill the question has read the fact before any method is asked; one token a step it has not.
TEST(Run, AQuestionThroughDecodeTestsTheMethod) {
  const TempFolder folder;
  const std::string document = folder.write("tale.txt", read_file(MNEME_DEMO_FILE).substr(0, 14000));
  const auto answer = [&](const char* method, const char* question) {
    return ask({"-f", document, "-q", "What is the secret number of copper-lantern?", "--kv-method", method,
                "--kv-budget", "512", "--dense-layers", "none", "--question", question})
        .out;
  };
  EXPECT_EQ(answer("quest", "decode"), "70935\n");
  EXPECT_EQ(answer("window", "prefill")[0], '7') << "the first digit comes from the prefill";
  EXPECT_NE(answer("window", "decode")[0], '7');
}

TEST(Run, SmallChunksAndOneThreadGiveTheSameAnswer) {
  EXPECT_EQ(ask({"-p", kDocument, "-q", kQuestion, "-b", "7", "-t", "1", "--no-pin", "--deterministic"}).out,
            "48213\n");
}

// "one two three one two three" is what drafts find at once.
TEST(Run, DraftsGiveTheSameAnswerInFewerSteps) {
  const auto report = [](const std::string& drafts) {
    return Json::parse(ask({"--raw", "-p", "one two three one two three one two three", "-n", "40", "--ignore-end",
                            "--deterministic", "--speculative", drafts, "--json"})
                           .out);
  };
  const Json plain = report("off"), drafting = report("ngram:k=4,min=2");
  EXPECT_EQ(drafting["answer"], plain["answer"]);
  EXPECT_FALSE(plain.contains("speculative"));
  const Json& s = drafting["speculative"];
  EXPECT_EQ(s["drafts"], "ngram:k=4,min=2");
  EXPECT_GT(s["accepted_tokens"], 0);
  EXPECT_GE(s["drafted_tokens"], s["accepted_tokens"]);
  EXPECT_EQ(s["decode_steps"].get<int>() + s["accepted_tokens"].get<int>(), 39);
}

TEST(Run, DraftsUnderAMethodAreRefused) {
  const Outcome refused = ask({"-p", kDocument, "--speculative", "ngram", "--kv-method", "quest"});
  EXPECT_THAT(refused.err, testing::HasSubstr("expected --kv full, found quest"));
  EXPECT_NE(refused.code, 0);
}

TEST(Run, TheSameSeedSamplesTheSameAnswer) {
  auto draw = [&](const std::string& seed) {
    return ask({"-p", kDocument, "--temp", "1.5", "--seed", seed, "-n", "20", "--ignore-end", "-t", "1"}).out;
  };
  const std::string once = draw("7");
  EXPECT_EQ(once, draw("7"));
  EXPECT_NE(once, draw("8"));
}

TEST(Run, RawPromptsHaveNoFramingAndCanSpellIt) {
  const std::string spelled = "<|user|>" + kDocument + "\n\n\n" + kQuestion + "<|end|><|assistant|>";
  EXPECT_EQ(ask({"--raw", "--special", "-p", spelled}).out, "48213\n");
  // Without --special the marks are characters, which take more tokens.
  const Outcome as_text = ask({"--raw", "-p", spelled, "--json", "-n", "1"});
  const Outcome as_marks = ask({"--raw", "--special", "-p", spelled, "--json", "-n", "1"});
  EXPECT_GT(Json::parse(as_text.out)["prompt_tokens"], Json::parse(as_marks.out)["prompt_tokens"]);
}

TEST(Run, AnInterruptEndsTheAnswerAndKeepsWhatThereIs) {
  Running program({MNEME_BINARY, "run", "-m", MNEME_MODEL_FILE, "-p", kDocument, "-q", kQuestion, "--ignore-end", "-n",
                   "20000", "--stats"});
  ASSERT_TRUE(program.wait_for_output(8)) << program.wait().err;
  ASSERT_EQ(::kill(program.pid(), SIGINT), 0);
  const Outcome o = program.wait();
  EXPECT_EQ(o.code, 130);
  EXPECT_THAT(o.out, StartsWith("48213"));
  EXPECT_THAT(o.out, EndsWith("\n"));
  EXPECT_THAT(o.err, HasSubstr("interrupted"));
}

TEST(Run, AnInterruptDuringPrefillEndsItToo) {
  std::string book;
  for (int i = 0; i < 120; ++i) book += kDocument + "\n";
  Running program({MNEME_BINARY, "run", "-m", MNEME_MODEL_FILE, "-q", kQuestion, "-b", "16", "--stats"},
                  {.text = book});
  // Some time after the model is loaded; before that an interrupt ends the program by its signal, which is as good.
  ::usleep(700'000);
  ::kill(program.pid(), SIGINT);
  const Outcome o = program.wait();
  EXPECT_THAT(o.code, ::testing::AnyOf(130, 128 + SIGINT)) << o.err;
}

TEST(Program, VersionAndHelp) {
  const Outcome version = mneme({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_THAT(version.out, ::testing::MatchesRegex("mneme [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  const Outcome help = mneme({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.err, IsEmpty());
  for (const char* command : {"run", "inspect", "tokenize", "convert"}) EXPECT_THAT(help.out, HasSubstr(command));
  const Outcome run_help = mneme({"run", "--help"});
  EXPECT_EQ(run_help.code, 0);
  for (const char* group : {"Prompt:", "Answer:", "Sampling:", "Memory and speed:", "Output:"})
    EXPECT_THAT(run_help.out, HasSubstr(group));
}

TEST(Inspect, NamesWhatIsInTheFile) {
  const Outcome o = mneme({"inspect", MNEME_MODEL_FILE});
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* part : {"llama", "GGUF", "rms_epsilon          1e-05"}) EXPECT_THAT(o.out, HasSubstr(part));
}

TEST(Inspect, TakesTheModelAsOtherCommandsDo) {
  const Outcome named = mneme({"inspect", "-m", MNEME_MODEL_FILE});
  EXPECT_EQ(named.code, 0) << named.err;
  EXPECT_EQ(named.out, mneme({"inspect", MNEME_MODEL_FILE}).out);
}

TEST(Tokenize, IdsOnOneLine) {
  const Outcome o = mneme({"tokenize", "-m", MNEME_MODEL_FILE, "--ids", "--no-bos"}, {.text = "The secret number"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, ::testing::MatchesRegex("[0-9]+( [0-9]+)*\n"));
}

TEST(Convert, WritesAFileThatAnswers) {
  const TempFolder folder;
  const std::string out = (folder.path() / "copy.gguf").string();
  const Outcome converted = mneme({"convert", "-m", MNEME_MODEL_FILE, out, "--type", "bf16"});
  ASSERT_EQ(converted.code, 0) << converted.err;
  const Outcome o = mneme({"run", "-m", out, "-p", kDocument, "-q", kQuestion});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, "48213\n");
}

TEST(Convert, ReplacesNoFileUnasked) {
  const TempFolder folder;
  const std::string model = folder.write("model.gguf", read_file(MNEME_MODEL_FILE));
  const std::string same = (folder.path() / "." / "model.gguf").string(), other = folder.write("other.gguf", "mine");
  for (const auto& arguments :
       {std::vector<std::string>{"convert", model, model}, {"convert", model, same, "--force"}}) {
    const Outcome o = mneme(arguments);
    EXPECT_EQ(o.code, 2);
    EXPECT_THAT(o.err, HasSubstr("is the input itself"));
  }
  const Outcome refused = mneme({"convert", model, other});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--force"));
  EXPECT_EQ(read_file(other), "mine");
  EXPECT_EQ(mneme({"convert", model, other, "--force", "--type", "Q8_0"}).code, 0);
  EXPECT_GT(read_file(other).size(), 1'000'000u);
}

}  // namespace
}  // namespace mneme::cli_test
