// Ranks that talk by ZeroMQ on this machine, and what strangers send them.
#include "src/parallel/socket_collective.h"

#include <gmock/gmock.h>
#include <zmq.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "src/base/error.h"
#include "tests/parallel/collective_cases.h"
#include "tests/parallel/reserved_port.h"

namespace mneme::parallel_test {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr double kPatientSeconds = 120;

// What each rank's function threw; "": nothing.
std::vector<std::string> over_sockets(int size, const std::function<void(Collective&)>& run) {
  const ReservedPort port;
  std::vector<std::string> errors(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        const auto ranks = socket_collective(port.address(), r, size, kPatientSeconds);
        run(*ranks);
        ranks->barrier();
      } catch (const Error& e) {
        errors[r] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

TEST(SocketCollective, SumsGathersAndBroadcastsInTheOrderOfTheRanks) {
  for (const int size : {1, 2, 3}) {
    EXPECT_THAT(over_sockets(size,
                             [](Collective& ranks) {
                               EXPECT_TRUE(reduces_rightly(ranks));
                               EXPECT_TRUE(gathers_rightly(ranks));
                             }),
                Each(""));
  }
}

TEST(SocketCollective, DifferentCallsAreFoundOut) {
  for (const bool other_size : {false, true}) {
    const auto errors = over_sockets(2, [&](Collective& ranks) {
      std::vector<float> values(ranks.rank() == 0 && other_size ? 3 : 2);
      if (ranks.rank() == 1 && !other_size) return ranks.barrier();
      ranks.all_reduce(values);
    });
    EXPECT_THAT(errors, Each(HasSubstr("do not make the same calls")));
  }
}

TEST(SocketCollective, ARankThatEndsEndsAll) {
  const auto errors = over_sockets(3, [](Collective& ranks) {
    if (ranks.rank() == 1) fail(ErrorKind::kDevice, "rank 1 gives up");
    float value = 0;
    ranks.all_reduce(std::span(&value, 1));
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 ended"));
  EXPECT_THAT(errors[2], HasSubstr("rank 1 ended"));
}

// Rank 1 of two as bytes: what it sends is what a stranger may send.
class RankOne {
 public:
  // As src/parallel/socket_collective.cc has them on the wire.
  static constexpr std::uint32_t kMagic = 0x6d6e6d02, kHello = 1, kReduce = 2;
  struct Header {
    std::uint32_t magic = kMagic, kind = kReduce, rank = 1, size = 2;
    std::uint64_t bytes = 0;
  };

  explicit RankOne(const std::string& address) : context_(zmq_ctx_new()), socket_(zmq_socket(context_, ZMQ_DEALER)) {
    zmq_setsockopt(socket_, ZMQ_ROUTING_ID, "1", 1);
    EXPECT_EQ(zmq_connect(socket_, ("tcp://" + address).c_str()), 0);
    send({.kind = kHello}, {});
  }
  ~RankOne() {
    const int linger = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof linger);
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  RankOne(const RankOne&) = delete;
  RankOne& operator=(const RankOne&) = delete;

  void send(const Header& header, const std::vector<float>& values) {
    zmq_send(socket_, &header, sizeof header, ZMQ_SNDMORE);
    zmq_send(socket_, values.data(), values.size() * sizeof(float), 0);
  }

 private:
  void *context_, *socket_;
};

// Values shorter than their header says were read beyond their end.
TEST(SocketCollective, MessagesThatAreNoneOfARankAreIgnored) {
  const ReservedPort port;
  std::vector<float> sums(16, 1.0f);
  std::thread rank_zero([&] {
    const auto ranks = socket_collective(port.address(), 0, 2, kPatientSeconds);
    ranks->all_reduce(sums);
  });
  RankOne peer(port.address());
  const std::uint64_t bytes = sums.size() * sizeof(float);
  const std::vector<float> wrong(16, 100.0f), right(16, 2.0f);
  peer.send({.bytes = bytes}, {100.0f, 100.0f});
  peer.send({.bytes = bytes}, std::vector<float>(17, 100.0f));
  peer.send({.magic = 0x12345678, .bytes = bytes}, wrong);
  peer.send({.rank = 2, .bytes = bytes}, wrong);
  peer.send({.rank = 0xffffffff, .bytes = bytes}, wrong);
  peer.send({.bytes = bytes}, right);
  rank_zero.join();
  EXPECT_THAT(sums, Each(3.0f));
}

// The test's port was free a moment before: another program could take it, and the other ranks waited for 600 s.
TEST(SocketCollective, AReservedPortIsTheTestsAlone) {
  const ReservedPort port;
  const ReservedPort other;
  EXPECT_NE(port.number(), other.number());
  const std::string address = port.address();
  EXPECT_EQ(socket_collective(address, 0, 1)->size(), 1);
  EXPECT_EQ(socket_collective(address, 0, 1)->size(), 1) << "once more";
}

TEST(SocketCollective, AddressesThatAreNoneAreRefused) {
  for (const char* address : {"", "host", ":5000", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:50a"})
    EXPECT_THROW(socket_collective(address, 0, 2), Error) << address;
}

}  // namespace
}  // namespace mneme::parallel_test
