// What requests take of memory at the peak. Alone in a program: the peak is the process's.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "tests/server/http_client.h"
#include "tests/server/running_server.h"

namespace mneme::server_test {
namespace {

using nlohmann::json;

std::int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kibibytes = 0;
    if (word == "VmHWM:" && status >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

// 250 times its body, once.
TEST(Memory, TokenizeTakesLittle) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep what is freed";
#endif
  RunningServer server;
  constexpr std::size_t kBytes = 20 << 20;
  const std::string words = "The harbour master kept eleven lanterns in the tower, and none of them was ever lit. ";
  std::string text;
  text.reserve(kBytes + words.size());
  while (text.size() < kBytes) text += words;
  const std::string body = json{{"content", std::move(text)}, {"with_pieces", true}}.dump();
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins here
  const std::int64_t before = peak_bytes();
  Client client(server.port());
  client.send_request("POST", "/tokenize", body);
  ASSERT_TRUE(client.read_until(" 200 "));
  EXPECT_LT(peak_bytes() - before, 20 * std::ssize(body));
}

}  // namespace
}  // namespace mneme::server_test
