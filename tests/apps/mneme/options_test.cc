#include "apps/mneme/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "apps/mneme/kv_options.h"
#include "apps/mneme/model_source.h"
#include "mneme/error.h"
#include "src/base/size32.h"
#include "src/engine/kv_method.h"
#include "src/recipes/fields.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"

namespace mneme::cli {
namespace {

std::string refusal(const CLI::Validator& validator, std::string text) {
  return validator(text);
}

TEST(Options, WholeNumbers) {
  const auto v = whole_number(-2, 10);
  for (const char* good : {"0", "-2", "10"}) EXPECT_EQ(refusal(v, good), "") << good;
  for (const char* bad : {"", " 1", "1 ", "1.0", "0x1", "11", "-3", "one", "99999999999999999999"})
    EXPECT_NE(refusal(v, bad), "") << bad;
  EXPECT_EQ(refusal(v, "11"), "expected an integer from -2 to 10, found \"11\"");
}

TEST(Options, Numbers) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const char* good : {"0", "1", "0.5", "1e-3", ".25"}) EXPECT_EQ(refusal(number(0, 1), good), "") << good;
  for (const char* bad : {"", "-0.1", "1.01", "nan", "inf", "1,5", "0.5x"})
    EXPECT_NE(refusal(number(0, 1), bad), "") << bad;
  EXPECT_EQ(refusal(number(0, kInf), "-1"), "expected a number, 0 or more, found \"-1\"");
  EXPECT_EQ(refusal(number(-kInf, kInf), "x"), "expected a number, found \"x\"");
}

TEST(Options, SizesHaveUnits) {
  const auto tokens_of = [](const char* text) { return parse_size(text, SizeOf::kTokens).value_or(-1); };
  for (const char* text : {"131072", "128k", "128K", "0.125M"}) EXPECT_EQ(tokens_of(text), 131072) << text;
  EXPECT_EQ(tokens_of("1m"), 1 << 20);
  for (const char* bad : {"", "K", "1.5", "1KB", "1 K", "1G", "-", "0x10", "nan", "1e3", "99999999999999999999x"})
    EXPECT_EQ(tokens_of(bad), -1) << bad;
  const auto memory_of = [](const char* text) { return parse_size(text, SizeOf::kMemory).value_or(-1); };
  for (const char* text : {"16", "16GiB", "16gib", "16G", "16Gi", "16384MiB", "17179869184B"})
    EXPECT_EQ(memory_of(text), 17179869184.0) << text;
  EXPECT_EQ(memory_of("16GB"), 16e9);
  EXPECT_EQ(memory_of("512MiB"), 512 << 20);
  EXPECT_EQ(memory_of("1.5TB"), 1.5e12);
  for (const char* bad : {"", "GB", "1X", "1iB", "1 GB", "1GBit"}) EXPECT_EQ(memory_of(bad), -1) << bad;
  EXPECT_EQ(parse_size("4096", SizeOf::kBytes), 4096);
  EXPECT_EQ(parse_size("4KiB", SizeOf::kBytes), 4096);
}

TEST(Options, SizesArriveAsNumbers) {
  CLI::App app;
  std::int64_t context = 0, memory = 0, body = 0;
  std::vector<std::int32_t> depths;
  app.add_option("-c", context)->transform(tokens(1, 1 << 30));
  app.add_option("--body", body)->transform(bytes(1024, 1 << 30));
  app.add_option("--depths", depths)->delimiter(',')->transform(tokens(1, 1 << 30));
  add_gib(app, "--memory", memory, "");
  app.parse("-c 128k --memory 16GB --body 1MB --depths 2k,4096,1M");
  EXPECT_EQ(context, 131072);
  EXPECT_EQ(memory, 16'000'000'000);
  EXPECT_EQ(body, 1'000'000);
  EXPECT_EQ(depths, (std::vector<std::int32_t>{2048, 4096, 1 << 20}));
  EXPECT_EQ(refusal(tokens(1, 4096), "5K"),
            "expected an integer from 1 to 4096, as in 32768, 128K or 1M, found \"5K\"");
  EXPECT_NE(refusal(gib(1, 4), "5GiB"), "");
  EXPECT_EQ(refusal(gib(1, 4), "4GiB"), "");
}

KvOptions kv_of(const std::string& line) {
  CLI::App app;
  KvOptions o;
  add_kv_options(app, o);
  app.parse(line);
  return o;
}

TEST(KvOptions, ARecipeHasOneSpelling) {
  for (const char* line :
       {"--kv freekv:tau=0.9,pool=maxS", "--kv-method freekv:tau=0.9,pool=maxS", "--kv-method freekv:tau=0.9/pool=maxS",
        "--kv-method freekv --kv tau=0.9,pool=maxS", "--kv pool=maxS --kv-method freekv:tau=0.9"}) {
    const KvOptions o = kv_of(line);
    EXPECT_EQ(o.method, "freekv") << line;
    EXPECT_EQ(print_recipe(recipe_of(o)), print_recipe(parse_recipe("freekv:tau=0.9,pool=maxS"))) << line;
  }
  EXPECT_EQ(kv_of("--kv tau=0.8 --kv-method freekv:tau=0.9").overrides, "tau=0.9,tau=0.8") << "the last one counts";
  EXPECT_EQ(kv_of("").method, "full");
  EXPECT_EQ(kv_of("--kv quest").method, "quest");
  EXPECT_THROW(kv_of("--kv quest --kv-method freekv"), Error);
}

TEST(KvOptions, EveryFieldOfTheTableIsReadBehindTheName) {
  for (const RecipeRow& row : recipe_table())
    for (const RecipeField& field : recipe_fields()) {
      const std::string value = override_value(make_recipe(row.name, {}), field.name);
      if (value.empty() || value.find('/') != std::string::npos) continue;
      const KvOptions o = kv_of(fmt::format("--kv {}:{}={}", row.name, field.name, value));
      EXPECT_EQ(o.overrides, fmt::format("{}={}", field.name, value));
      EXPECT_EQ(o.method, row.name);
    }
}

TEST(KvOptions, ASlashInAFileIsNoComma) {
  EXPECT_EQ(parse_method("duo_attention:full_heads=heads/model.tsv/sink=32").settings,
            "full_heads=heads/model.tsv,sink=32");
}

TEST(KvOptions, AListOfRecipesHasTheSameSpelling) {
  CLI::App app;
  KvOptions o;
  std::vector<std::string> methods = {"full"};
  add_kv_options(app, o, methods);
  app.parse("--kv full,quest:budget=512,unit=page:32,freekv,fier:pool=none");
  EXPECT_EQ(methods, (std::vector<std::string>{"full", "quest:budget=512/unit=page:32", "freekv", "fier:pool=none"}));
  EXPECT_EQ(recipe_named(methods[1], {}), parse_recipe("quest:budget=512,unit=page:32"));
  EXPECT_THROW(join_settings({"freekv", "tau=0.9"}), Error);
  EXPECT_THROW(join_settings({"tau=0.9"}), Error);
}

TEST(Options, Words) {
  EXPECT_EQ(refusal(one_of({"bf16", "f16"}), "f16"), "");
  EXPECT_EQ(refusal(one_of({"bf16", "f16"}), "F16"), "expected bf16 or f16, found \"F16\"");
  EXPECT_NE(refusal(not_empty(), ""), "");
  EXPECT_EQ(refusal(not_empty(), "x"), "");
}

TEST(Options, EnvironmentNamesComeFromTheFirstLongName) {
  CLI::App app;
  bool flag = false;
  CLI::App* sub = app.add_subcommand("sub");
  sub->add_flag("-c,--max-model-len,--ctx-size", flag);
  sub->add_flag("-x", flag);
  name_environment(app);
  EXPECT_EQ(sub->get_option("--max-model-len")->get_envname(), "MNEME_MAX_MODEL_LEN");
  EXPECT_EQ(sub->get_option("-x")->get_envname(), "");
  EXPECT_EQ(sub->get_option("--help")->get_envname(), "");
}

TEST(Options, TheShortNameOfAHubIsSpelledOut) {
  CLI::App app;
  std::string text;
  app.add_subcommand("run")->add_option("-p,--prompt", text);
  const auto spelled = [&](std::vector<const char*> given) {
    std::string out;
    for (const char* word : with_long_hf(app, size32(given), given.data())) out += word + std::string(" ");
    return out;
  };
  EXPECT_EQ(spelled({"mneme", "run", "-hf", "a/b"}), "mneme run --hf-repo a/b ");
  EXPECT_EQ(spelled({"mneme", "run", "-p", "-hf", "-hf", "a/b"}), "mneme run -p -hf --hf-repo a/b ");
  EXPECT_EQ(spelled({"mneme", "run", "--prompt=x", "-hf", "a/b"}), "mneme run --prompt=x --hf-repo a/b ");
  EXPECT_EQ(spelled({"-hf", "run", "--", "-hf"}), "-hf run -- -hf ");
}

// Sets a variable while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(Options, EveryAliasHasAnEnvironmentVariable) {
  const auto parsed = [] {
    CLI::App app;
    int sequences = 1;
    bool caching = true;
    app.add_option("-p,--parallel,--max-num-seqs", sequences);
    app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", caching);
    name_environment(app);
    app.parse("");
    return std::pair(sequences, caching);
  };
  EXPECT_EQ(parsed(), std::pair(1, true));
  const Variable second("MNEME_MAX_NUM_SEQS", "7");
  EXPECT_EQ(parsed(), std::pair(7, true));
  const Variable first("MNEME_PARALLEL", "3"), off("MNEME_ENABLE_PREFIX_CACHING", "false");
  EXPECT_EQ(parsed(), std::pair(3, false));
  const Variable negation("MNEME_NO_ENABLE_PREFIX_CACHING", "true");
  EXPECT_EQ(parsed(), std::pair(3, false));
}

// As Kubernetes sets it for a service that is called "mneme".
TEST(Options, APortOfKubernetesIsIgnoredWithAWarning) {
  const auto parsed = [](const char* value) {
    const Variable variable("MNEME_PORT", value);
    CLI::App app;
    int port = 8000;
    app.add_subcommand("serve", "")->add_option("--port", port);
    name_environment(app);
    testing::internal::CaptureStderr();
    app.parse("serve");
    return std::pair(port, testing::internal::GetCapturedStderr());
  };
  EXPECT_EQ(parsed("9000"), std::pair(9000, std::string()));
  const auto [port, warning] = parsed("tcp://10.0.0.1:8000");
  EXPECT_EQ(port, 8000);
  EXPECT_NE(warning.find("warning: MNEME_PORT=\"tcp://10.0.0.1:8000\" is ignored"), std::string::npos) << warning;
}

}  // namespace
}  // namespace mneme::cli
