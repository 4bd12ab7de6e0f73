// A model over two processes, as a user runs it: the same answers as one, also to clients that leave; ranks that are
// killed or stopped; launchers; errors of one line.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "tests/apps/mneme/program.h"
#include "tests/parallel/reserved_port.h"
#include "tests/server/http_client.h"

namespace mneme::server_test {
namespace {

using cli_test::Input;
using cli_test::Outcome;
using cli_test::Running;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

std::vector<std::string> run_with(std::vector<std::string> more) {
  std::vector<std::string> command = {MNEME_BINARY, "run", "-m", MNEME_MODEL_FILE, "--no-progress", "--no-pin"};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

// Processes that `parent` started and that live.
std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream in("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children");
  std::vector<pid_t> out;
  for (pid_t child = 0; in >> child;) out.push_back(child);
  return out;
}

bool lives(pid_t pid) {
  return kill(pid, 0) == 0;
}

struct Served : Running {
  explicit Served(std::vector<std::string> more, const Input& input = {}) : Running(with(std::move(more)), input) {
    EXPECT_TRUE(wait_for_output(30));
    const std::string line = output();
    port = static_cast<std::uint16_t>(std::stoi(line.substr(line.rfind(':') + 1)));
  }
  static std::vector<std::string> with(std::vector<std::string> more) {
    std::vector<std::string> command = {MNEME_BINARY, "serve", "-m",   MNEME_MODEL_FILE, "--port", "0",  "--quiet",
                                        "--no-pin",   "-c",    "1024", "--parallel",     "6",      "-b", "64"};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  std::uint16_t port = 0;
};

// Six requests at once: one a fork of three answers, two with the beginning of an earlier prompt, one with a schema, one
// whose client leaves.
std::vector<std::string> answers_of(std::uint16_t port) {
  const std::string about =
      "The harbour lay quiet. The secret number of silver-harbour is 48213. Boats came and went. ";
  std::vector<Json> bodies;
  for (const char* end :
       {"The secret number of silver-harbour is", "The number of silver-harbour is", "Boats", "And then the"})
    bodies.push_back({{"prompt", about + about + about + end}, {"max_tokens", 10}, {"temperature", 0}});
  bodies[2]["n"] = 3;
  bodies[3]["response_format"] = {{"type", "json_object"}};
  std::vector<std::string> answers(bodies.size());
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < bodies.size(); ++i)
    clients.emplace_back([&, i] { answers[i] = post(port, "/v1/completions", bodies[i]).json()["choices"].dump(); });
  clients.emplace_back([&] {
    Client leaves(port);
    leaves.send_request("POST", "/v1/completions",
                        Json{{"prompt", about}, {"max_tokens", 500}, {"stream", true}}.dump());
    leaves.read_until("data:");
    leaves.reset();
  });
  for (std::thread& t : clients) t.join();
  return answers;
}

TEST(Ranks, TheServerAnswersAsOfOneRank) {
  const std::vector<std::string> more = {"--deterministic", "--inter-token-ms", "20", "--kv-admission", "forecast"};
  std::vector<std::string> two = more;
  two.insert(two.end(), {"--tensor-parallel-size", "2"});
  Served alone(more), ranks(two);
  const std::vector<std::string> expected = answers_of(alone.port);
  for (int round = 0; round < 2; ++round) EXPECT_EQ(answers_of(ranks.port), expected) << round;
  EXPECT_THAT(get(ranks.port, "/metrics").body, HasSubstr("prefix"));
  const std::vector<pid_t> children = children_of(ranks.pid());
  ASSERT_EQ(children.size(), 1u);
  kill(ranks.pid(), SIGTERM);
  EXPECT_EQ(ranks.wait().code, 0);
  EXPECT_FALSE(lives(children[0]));
  kill(alone.pid(), SIGTERM);
  alone.wait();
}

TEST(Ranks, AKilledRankEndsRequestsAndTheServer) {
  for (const bool idle : {true, false}) {
    Served server({"--tensor-parallel-size", "2"});
    const std::vector<pid_t> children = children_of(server.pid());
    ASSERT_EQ(children.size(), 1u);
    kill(children[0], SIGTERM);  // as a supervisor's to all: it does not end a follower
    Client client(server.port);
    const Json body = {{"prompt", "Once"}, {"max_tokens", 900}, {"ignore_eos", true}, {"stream", true}};
    if (!idle) {
      client.send_request("POST", "/v1/completions", body.dump());
      ASSERT_TRUE(client.read_until("data:"));
    }
    kill(children[0], SIGKILL);
    if (!idle) {
      EXPECT_TRUE(client.read_until("rank 1 ended"));
    }
    const Outcome end = server.wait();
    EXPECT_EQ(end.code, 1);
    EXPECT_THAT(end.err, HasSubstr("mneme: error: the ranks stopped: rank 1 ended"));
  }
}

TEST(Ranks, AStoppedRankEndsTheAnswerInTime) {
  const Input quick{.env = {{"MNEME_RANK_SECONDS", "1"}}};
  Running run(run_with({"-p", "Once", "-n", "1000", "--ignore-end", "--tensor-parallel-size", "2"}), quick);
  ASSERT_TRUE(run.wait_for_output(1));
  const std::vector<pid_t> children = children_of(run.pid());
  ASSERT_EQ(children.size(), 1u);
  kill(children[0], SIGSTOP);
  const Outcome end = run.wait();
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, HasSubstr("mneme: error: the ranks stopped: rank 1 did not answer within 1 s"));
  EXPECT_FALSE(lives(children[0]));
}

TEST(Ranks, AnInterruptEndsTheAnswerAndAllRanks) {
  Running run(run_with({"-p", "Once", "-n", "1000", "--ignore-end", "--tensor-parallel-size", "2"}));
  ASSERT_TRUE(run.wait_for_output(1));
  const std::vector<pid_t> children = children_of(run.pid());
  ASSERT_EQ(children.size(), 1u);
  kill(children[0], SIGINT);  // a terminal sends it to all
  kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait().code, 130);
  EXPECT_FALSE(lives(children[0]));
}

// As torchrun does it, and as two machines would: each process is told its rank, and they talk over a socket.
TEST(Ranks, RanksOfALauncherAnswerAsOne) {
  const std::vector<std::string> ask = {"-p", "The secret number of silver-harbour is 48213. What is", "-n", "8"};
  const Outcome expected = cli_test::run_program(run_with(ask));
  std::vector<std::string> two = ask;
  two.insert(two.end(), {"--tensor-parallel-size", "2"});
  const parallel_test::ReservedPort reserved;
  const std::string port = std::to_string(reserved.number());
  const auto place = [&](const char* rank) {
    return Input{.env = {{"RANK", rank},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", rank},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", port}}};
  };
  Running second(run_with(two), place("1")), first(run_with(two), place("0"));
  const Outcome here = first.wait();
  EXPECT_EQ(here.code, 0) << here.err;
  EXPECT_EQ(here.out, expected.out);
  const Outcome there = second.wait();
  EXPECT_EQ(there.code, 0) << there.err;
  EXPECT_EQ(there.out, "");

  std::vector<std::string> host0 = two, host1 = two;
  const std::string address = reserved.address();
  host0.insert(host0.end(), {"--nnodes", "2", "--node-rank", "0", "--dist-init-addr", address});
  host1.insert(host1.end(), {"--nnodes", "2", "--node-rank", "1", "--dist-init-addr", address});
  host1.insert(host1.end(), {"--kv-budget", "300", "--kv-method", "freekv"});
  Running other(run_with(host1)), lead(run_with(host0));
  EXPECT_THAT(lead.wait().err, HasSubstr("ranks 0 and 1 have not the same options"));
  EXPECT_THAT(other.wait().err, HasSubstr("ranks 0 and 1 have not the same options"));
}

TEST(Ranks, LayersOverThreeRanksAnswerAsOne) {
  for (const char* method : {"full", "tova"}) {
    std::vector<std::string> ask = {
        "-p",  "The secret number of silver-harbour is 48213. What is", "-n", "8", "--deterministic", "--kv-method",
        method};
    const Outcome expected = cli_test::run_program(run_with(ask));
    ask.insert(ask.end(), {"--pipeline-parallel-size", "3"});
    const Outcome here = cli_test::run_program(run_with(ask));
    EXPECT_EQ(here.code, 0) << here.err;
    EXPECT_EQ(here.out, expected.out) << method;
  }
}

TEST(Ranks, ErrorsAreOneLine) {
  struct Case {
    std::vector<std::string> options;
    const char* says;
  };
  const Case cases[] = {
      {{"--tensor-parallel-size", "3"}, "2 KV heads cannot be shared out"},
      {{"--gpus", "0,1", "--tensor-parallel-size", "2"}, "--gpus: only with --device cuda"},
      {{"--device", "cuda", "--gpus", "0,0", "--tensor-parallel-size", "2"}, "--gpus: GPU 0 is named twice"},
      {{"--device", "cuda", "--gpus", "0", "--tensor-parallel-size", "2"}, "--gpus: 1 GPUs for"},
      {{"--tensor-parallel-size", "2", "--kv-method", "tova"}, "which ranks do not do yet"},
      {{"--tensor-parallel-size", "2", "--nnodes", "2"}, "expected --dist-init-addr HOST:PORT"},
      {{"--tensor-parallel-size", "2", "--nnodes", "2", "--dist-init-addr", "nowhere"}, "expected HOST:PORT"},
      {{"--pipeline-parallel-size", "60"}, "the model has"},
      {{"--pipeline-parallel-size", "2", "--tensor-parallel-size", "2"}, "expected one of the two"},
      {{"--pipeline-parallel-size", "2", "--kv-method", "pyramidkv"}, "which ranks do not do yet"},
      {{"--tensor-parallel-size", "2", "--nnodes", "3"}, "2 ranks cannot be shared out so"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> options = {"-p", "x", "-n", "1"};
    options.insert(options.end(), c.options.begin(), c.options.end());
    const Outcome end = cli_test::run_program(run_with(options));
    EXPECT_EQ(end.code, 2) << c.says;
    EXPECT_THAT(end.err, HasSubstr(c.says));
    EXPECT_EQ(std::count(end.err.begin(), end.err.end(), '\n'), 1) << end.err;
  }
}

TEST(Ranks, APortThatIsInUseIsAnError) {
  Served other({});  // has its port
  const Input first{.env = {{"RANK", "0"}, {"WORLD_SIZE", "2"}}};
  const Outcome end = cli_test::run_program(run_with({"-p", "x", "-n", "1", "--tensor-parallel-size", "2",
                                                      "--dist-init-addr", "127.0.0.1:" + std::to_string(other.port)}),
                                            first);
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err,
              HasSubstr("cannot listen at 127.0.0.1:" + std::to_string(other.port) + ": Address already in use"));
  kill(other.pid(), SIGTERM);
  other.wait();
}

}  // namespace
}  // namespace mneme::server_test
