#include "src/server/events/kv_event_publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zmq.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/kv/page_pool.h"
#include "src/server/events/kv_event_wire.h"
#include "tests/error_message.h"
#include "tests/server/http_client.h"
#include "tests/server/running_server.h"

namespace mneme::server_test {
namespace {

using nlohmann::json;
using server::KvEventPublisher;
using Parts = std::vector<std::string>;

constexpr int kPatience = 60'000;  // ms

// A socket of a subscriber's, connected.
class Peer {
 public:
  Peer(int type, const std::string& endpoint) : context_(zmq_ctx_new()), socket_(zmq_socket(context_, type)) {
    constexpr int kNone = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &kNone, sizeof kNone);
    if (type == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "", 0);
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0) << endpoint;
  }
  ~Peer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  void send(const Parts& parts) const {
    for (std::size_t i = 0; i < parts.size(); ++i)
      zmq_send(socket_, parts[i].data(), parts[i].size(), i + 1 < parts.size() ? ZMQ_SNDMORE : 0);
  }
  // Of the next message; empty: none came within so many milliseconds.
  Parts receive(int wait_ms = kPatience) const {
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    Parts parts;
    for (int more = 1; more != 0;) {
      zmq_msg_t part;
      zmq_msg_init(&part);
      if (zmq_msg_recv(&part, socket_, 0) < 0) {
        EXPECT_LT(wait_ms, kPatience) << "nothing came";
        zmq_msg_close(&part);
        return {};
      }
      parts.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
      more = zmq_msg_more(&part);
      zmq_msg_close(&part);
    }
    return parts;
  }

 private:
  void* context_;
  void* socket_;
};

std::string bytes_of(std::int64_t number) {
  const std::vector<std::uint8_t> bytes = server::encode_sequence(number);
  return {bytes.begin(), bytes.end()};
}
std::int64_t number_of(const std::string& bytes) {
  return server::decode_sequence(std::vector<std::uint8_t>(bytes.begin(), bytes.end())).value_or(-2);
}

// Batches from `first` on, as the replay has them: by number.
std::vector<std::pair<std::int64_t, json>> replayed(const Peer& dealer, std::int64_t first, const std::string& topic) {
  dealer.send({"", bytes_of(first)});
  std::vector<std::pair<std::int64_t, json>> batches;
  for (;;) {
    const Parts parts = dealer.receive();
    if (parts.size() != 4) {
      ADD_FAILURE() << parts.size() << " parts";
      return batches;
    }
    EXPECT_EQ(parts[0], "");
    EXPECT_EQ(parts[1], topic);
    if (number_of(parts[2]) == -1) return batches;
    batches.emplace_back(number_of(parts[2]), json::from_msgpack(parts[3]));
  }
}

// All events so far, once there are at least n of them.
json events_of(const Peer& dealer, std::size_t n) {
  for (;;) {
    json events = json::array();
    for (const auto& [number, batch] : replayed(dealer, 0, ""))
      for (const json& event : batch[1]) events.push_back(event);
    if (events.size() >= n) return events;
  }
}

PageEvent removed(std::uint64_t hash) {
  return {.stored = false, .hash = hash, .parent = {}, .tokens = {}};
}

const server::KvEventOptions kAnyPort{.publish = "tcp://127.0.0.1:*", .replay = "tcp://127.0.0.1:*", .topic = ""};

TEST(KvEventPublisher, TheFirstBatchClears) {
  KvEventPublisher publisher(kAnyPort);
  const Peer dealer(ZMQ_DEALER, publisher.replay_endpoint());
  const json events = events_of(dealer, 1);
  EXPECT_EQ(events, json::array({{{"type", "AllBlocksCleared"}}}));
}

TEST(KvEventPublisher, ASubscriberSeesBatchesInOrder) {
  server::KvEventOptions options = kAnyPort;
  options.topic = "kv";
  KvEventPublisher publisher(options);
  const Peer subscriber(ZMQ_SUB, publisher.endpoint());
  // Nobody knows when the subscription has arrived: pushes until enough has come.
  std::int64_t last = -1;
  for (std::uint64_t i = 0, seen = 0; seen < 10; ++i) {
    publisher.push(removed(2 * i));
    const Parts parts = subscriber.receive(10);
    if (parts.empty()) continue;
    ++seen;
    ASSERT_EQ(parts.size(), 3u);
    EXPECT_EQ(parts[0], "kv");
    EXPECT_GT(number_of(parts[1]), last);
    last = number_of(parts[1]);
    EXPECT_EQ(json::from_msgpack(parts[2]).size(), 3u);
  }
}

TEST(KvEventPublisher, ReplaysFromANumberAndEndsWithMinusOne) {
  KvEventPublisher publisher(kAnyPort);
  const Peer dealer(ZMQ_DEALER, publisher.replay_endpoint());
  for (std::uint64_t i = 0; i < 5; ++i) {
    publisher.push(removed(2 * i));
    events_of(dealer, i + 2);  // a batch of its own for each
  }
  const auto all = replayed(dealer, 0, "");
  const auto late = replayed(dealer, all[2].first, "");
  EXPECT_EQ(late.size(), all.size() - 2);
  EXPECT_EQ(late.front(), all[2]);
  EXPECT_TRUE(replayed(dealer, 1000, "").empty());
}

TEST(KvEventPublisher, KeepsOnlySoManyBatches) {
  server::KvEventOptions options = kAnyPort;
  options.kept = 2;
  KvEventPublisher publisher(options);
  const Peer dealer(ZMQ_DEALER, publisher.replay_endpoint());
  for (std::uint64_t i = 0; i < 8; ++i) {
    publisher.push(removed(2 * i));
    while (true) {
      const auto batches = replayed(dealer, 0, "");
      EXPECT_LE(batches.size(), 2u);
      if (!batches.empty() && batches.back().second[1].back().value("block_hashes", json::array()) == json::array({i}))
        break;
    }
  }
  EXPECT_EQ(replayed(dealer, 0, "").size(), 2u);
}

TEST(KvEventPublisher, AQuestionThatIsNoneIsIgnored) {
  KvEventPublisher publisher(kAnyPort);
  const Peer dealer(ZMQ_DEALER, publisher.replay_endpoint());
  dealer.send({"nonsense"});
  dealer.send({"", "short"});
  EXPECT_FALSE(events_of(dealer, 1).empty());
}

TEST(KvEventPublisher, ErrorsNameTheOption) {
  KvEventPublisher publisher(kAnyPort);
  EXPECT_THAT(
      error_message(ErrorKind::kOption,
                    [&] { KvEventPublisher other({.publish = publisher.endpoint(), .replay = {}, .topic = {}}); }),
      testing::AllOf(testing::HasSubstr("--kv-events"), testing::HasSubstr("in use")));
  EXPECT_EQ(server::kv_event_endpoint("5557", "--kv-events"), "tcp://127.0.0.1:5557");
  EXPECT_EQ(server::kv_event_endpoint("0", "--kv-events"), "tcp://127.0.0.1:*");
  EXPECT_EQ(server::kv_event_endpoint("tcp://10.0.0.1:7", "--kv-events"), "tcp://10.0.0.1:7");
  for (const char* wrong : {"", "x", "70000", "tcp://host", "ipc:///tmp/x", "-1"})
    EXPECT_THAT(error_message(ErrorKind::kOption, [&] { server::kv_event_endpoint(wrong, "--kv-events-replay"); }),
                testing::HasSubstr("--kv-events-replay: expected a port"))
        << wrong;
}

// ---- the server

std::string document(const std::string& name) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += name + std::to_string(i) + " ";
  return text;
}

// What a prompt leaves in the prefix cache is published with its tokens; a salted prompt is nobody's business.
TEST(KvEventPublisher, AServerPublishesPrefixesAndNoSaltedOnes) {
  server::ServerOptions options = RunningServer::small();
  options.kv_events = kAnyPort;
  RunningServer server(options);
  const json info = get(server.port(), "/server_info").json()["kv_events"];
  EXPECT_EQ(info["block_size"], kPageTokens);
  const Peer dealer(ZMQ_DEALER, info["replay"].get<std::string>());
  const json salted = {{"prompt", document("salted")}, {"max_tokens", 1}, {"cache_salt", "s"}};
  ASSERT_EQ(post(server.port(), "/v1/completions", salted).status, 200);
  const json open = {{"prompt", document("open")}, {"max_tokens", 1}, {"return_token_ids", true}};
  const Response answer = post(server.port(), "/v1/completions", open);
  ASSERT_EQ(answer.status, 200);
  ASSERT_TRUE(server.idle());
  const std::vector<TokenId> prompt = answer.json()["choices"][0]["prompt_token_ids"].get<std::vector<TokenId>>();
  const json events = events_of(dealer, 2);
  std::vector<TokenId> published;
  for (const json& event : events) {
    if (event["type"] != "BlockStored") continue;
    EXPECT_EQ(event["token_ids"].size(), event["block_hashes"].size() * kPageTokens);
    for (const json& token : event["token_ids"]) published.push_back(token);
  }
  ASSERT_FALSE(published.empty());
  ASSERT_LE(published.size(), prompt.size() + 1);
  EXPECT_TRUE(std::equal(published.begin(), published.end(), prompt.begin()));
}

}  // namespace
}  // namespace mneme::server_test
