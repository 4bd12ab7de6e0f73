// -hf of the program: the shipped model from a hub on this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/apps/hub/hub_server.h"
#include "tests/apps/mneme/program.h"

namespace mneme::hub_test {
namespace {

using cli_test::Outcome;
using cli_test::read_file;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

const std::string& model() {
  static const std::string bytes = read_file(MNEME_MODEL_FILE);
  return bytes;
}

class HubProgram : public ::testing::Test {
 protected:
  std::vector<std::string> command(const std::vector<std::string>& arguments,
                                   const std::vector<std::string>& variables = {}) const {
    // By env: what is set outside comes first in a program's environment otherwise.
    std::vector<std::string> out = {"/usr/bin/env",
                                    "-u",
                                    "HF_TOKEN",
                                    "-u",
                                    "HF_HUB_CACHE",
                                    "-u",
                                    "HF_HUB_OFFLINE",
                                    "-u",
                                    "HUGGINGFACE_HUB_CACHE",
                                    "-u",
                                    "http_proxy",
                                    "-u",
                                    "all_proxy",
                                    "HF_HOME=" + folder.path().string(),
                                    "HF_ENDPOINT=" + server.http.url()};
    out.insert(out.end(), variables.begin(), variables.end());
    out.push_back(MNEME_BINARY);
    out.insert(out.end(), arguments.begin(), arguments.end());
    return out;
  }

  cli_test::TempFolder folder;
  HubServer server{{{"needle-27m-Q8_0.gguf", {model(), true}}, {"README.md", {"# A model\n"}}}};
};

TEST_F(HubProgram, RunFetchesOnceAndAnswers) {
  const std::vector<std::string> ask = {"run",
                                        "-hf",
                                        "acme/tiny",
                                        "-p",
                                        "The secret number of silver-harbour is 12345. The wind was cold.",
                                        "-q",
                                        "What is the secret number of silver-harbour?"};
  const Outcome first = cli_test::run_program(command(ask));
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("12345"));
  EXPECT_EQ(first.err,
            "mneme: fetching needle-27m-Q8_0.gguf, " + std::to_string((model().size() + 999'999) / 1'000'000) + " MB\n")
      << "a line a file where nobody looks at a terminal";
  const Outcome second = cli_test::run_program(command(ask, {"HF_HUB_OFFLINE=1", "HF_ENDPOINT=http://127.0.0.1:1"}));
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.out, first.out);
  EXPECT_EQ(second.err, "");
}

TEST_F(HubProgram, InspectAndTheVariableOfTheOption) {
  const Outcome o = cli_test::run_program(command({"inspect", "--json"}, {"MNEME_HF_REPO=acme/tiny:Q8_0"}));
  ASSERT_EQ(o.code, 0) << o.err;
  const Json json = Json::parse(o.out);
  EXPECT_THAT(json["file"].get<std::string>(), HasSubstr("/hub/models--acme--tiny/snapshots/" + kCommit));
}

TEST_F(HubProgram, ConvertFetchesToo) {
  const std::string to = (folder.path() / "tiny.gguf").string();
  const Outcome o = cli_test::run_program(command({"convert", "-hf", "acme/tiny", to, "--type", "q4_0"}));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr(to + ": "));
  EXPECT_EQ(cli_test::run_program(command({"inspect", to})).code, 0);
}

TEST_F(HubProgram, TwoProcessesFetchOnce) {
  server.fault = [](const Request& r, Connection& c) {
    if (r.method != "GET" || !r.path.ends_with(".gguf")) return false;
    c.send_head(200, {{"Content-Length", std::to_string(model().size())}});
    c.send(std::string_view(model()).substr(0, 5'000'000));
    std::this_thread::sleep_for(std::chrono::seconds(1));
    c.send(std::string_view(model()).substr(5'000'000));
    return true;
  };
  cli_test::Running a(command({"inspect", "-hf", "acme/tiny"})), b(command({"inspect", "-hf", "acme/tiny"}));
  const Outcome first = a.wait(), second = b.wait();
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(server.http.count("GET", ".gguf"), 1);
}

TEST_F(HubProgram, AProcessThatWasKilledGoesOn) {
  server.fault = [](const Request& r, Connection& c) {
    if (r.method != "GET" || !r.path.ends_with(".gguf") || !r.header("range").empty()) return false;
    c.send_head(200, {{"Content-Length", std::to_string(model().size())}});
    c.send(std::string_view(model()).substr(0, 5'000'000));
    std::this_thread::sleep_for(std::chrono::seconds(3));
    return true;
  };
  const auto incomplete = folder.path() / "hub/models--acme--tiny/blobs" / (sha256_of(model()) + ".incomplete");
  {
    const cli_test::Running killed(command({"inspect", "-hf", "acme/tiny"}));
    std::error_code not_yet;
    for (int i = 0; i < 1000 && (std::filesystem::file_size(incomplete, not_yet) != 5'000'000 || not_yet); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_EQ(std::filesystem::file_size(incomplete), 5'000'000u);
  const Outcome o = cli_test::run_program(command({"inspect", "-hf", "acme/tiny"}));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(server.http.requests().back().header("range"), HasSubstr("bytes=5000000-"));
}

TEST_F(HubProgram, BadInput) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"run", "-hf", "tiny", "-p", "x"},
                                             {"inspect", "-hf", "a/b/c"},
                                             {"doctor", "-hf", "tiny"},
                                             {"serve", "-hf", "tiny", "--port", "0"},
                                             {"eval", "-hf", "tiny"}}) {
    const Outcome o = cli_test::run_program(command(arguments));
    EXPECT_EQ(o.code, 2) << arguments[0];
    EXPECT_THAT(o.err, HasSubstr("OWNER/NAME[:QUANT]")) << arguments[0];
  }
  // The name is looked at before the prompt, which may come from a person or take long.
  Outcome o = cli_test::run_program(command({"run", "-hf", "tiny", "-f", "/nothing/here"}));
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("OWNER/NAME[:QUANT]"));
  o = cli_test::run_program(command({"run", "-hf", "acme/tiny", "-m", MNEME_MODEL_FILE, "-p", "x"}));
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("--model and -hf"));
  o = cli_test::run_program(command({"inspect"}));
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("file is required"));
  o = cli_test::run_program(command({"run", "-p", "-hf"}));
  EXPECT_THAT(o.err, HasSubstr("--model is required")) << "a prompt, not an option";
}

}  // namespace
}  // namespace mneme::hub_test
