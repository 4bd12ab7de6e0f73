#include "apps/bench/plan/cards.h"

#include <fmt/ranges.h>

#include <vector>

#include "src/base/ascii.h"
#include "src/base/error.h"

namespace mneme {
namespace {

// Of the data sheets' memory rates, what reading reaches: 4.66 of 4.8 TB/s on an H200 (mneme doctor).
constexpr double kReached = 0.97;
// PCIe 5 and 4 with 16 lanes, as gathers of 16 KiB reach them: 51 of 55.6 GB/s on an H200 (m5-gather-h200); half of it.
constexpr double kPcie5 = 51e9, kPcie4 = 25e9;
// Two H200s, NCCL 2.28.9 in a graph: 9.6 us for 16 KiB, 253 us for 64 MiB. Without NVLink: an estimate.
constexpr double kNvlinkSeconds = 9.5e-6, kNvlinkRate = 276e9, kPcieSeconds = 25e-6;
// Two H100s: 2.9 us for 16 KiB, 8.9 for 1 MiB (m14-two-gpus-peers-h100). An epoch goes beside each value.
constexpr double kPeerRate = 170e9;

const std::vector<Card>& cards() {
  static const std::vector<Card> kCards = {
      {"H200", 150.1e9, 4.66e12, kPcie5, kNvlinkSeconds, kNvlinkRate, kPeerRate, true, true},
      {"H100", 85.0e9, 3.35e12 * kReached, kPcie5, kNvlinkSeconds, kNvlinkRate, kPeerRate, true, false},
      {"B200", 191.5e9, 8.0e12 * kReached, kPcie5, kNvlinkSeconds, 2 * kNvlinkRate, 2 * kPeerRate, true, false},
      {"A100", 85.1e9, 2.04e12 * kReached, kPcie4, kNvlinkSeconds, kNvlinkRate * 2 / 3, kPeerRate * 2 / 3, false,
       false},
      {"L40S", 47.7e9, 0.864e12 * kReached, kPcie4, kPcieSeconds, kPcie4, 0, false, false},
      {"RTX4090", 25.4e9, 1.008e12 * kReached, kPcie4, kPcieSeconds, kPcie4, 0, false, false},
  };
  return kCards;
}

}  // namespace

Card card_named(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Card& card : cards()) {
    if (ascii_lower(card.name) == ascii_lower(name)) return card;
    known.push_back(card.name);
  }
  fail(ErrorKind::kOption, "--gpus: expected one of {}, as in 8xH100, found \"{}\"", fmt::join(known, ", "), name);
}

Gpus parse_gpus(std::string_view text) {
  const std::size_t x = text.find('x');
  const std::string_view count = x == std::string_view::npos ? "" : text.substr(0, x);
  const bool counted = !count.empty() && count.size() <= 4 && count.find_first_not_of("0123456789") == count.npos;
  if (!counted) return {.card = card_named(text), .n = 1};
  const int n = std::stoi(std::string(count));
  const bool splits = n == 1 || n == 2 || n == 4 || (n >= 8 && n % 8 == 0 && n <= 512);
  if (!splits) fail(ErrorKind::kOption, "--gpus: expected 1, 2, 4 or whole hosts of 8, found {}", n);
  return {.card = card_named(text.substr(x + 1)), .n = n};
}

}  // namespace mneme
