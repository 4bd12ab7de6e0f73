// GPUs by name: what a plan has to know of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mneme {

struct Card {
  std::string name;
  double memory_bytes = 0;
  double memory_rate = 0;       // bytes a second, read alone
  double link_rate = 0;         // bytes a second of gathered pages from the host
  double reduce_seconds = 0;    // of the smallest all-reduce of two GPUs
  double reduce_rate = 0;       // bytes a second of large ones
  double peer_rate = 0;         // of few rows, which GPUs write to each other's memory; 0: they do not
  bool hopper_kernels = false;  // cluster launch, bulk copies, PDL; without: the portable form of the kernels
  bool measured = false;        // by us; else from the data sheet, with the shares that our card reaches
};

// Errors  kOption: no such card; the known ones are named.
Card card_named(std::string_view name);

// "8xH100": the card, and how many.
//
// Errors  kOption.
struct Gpus {
  Card card;
  std::int32_t n = 1;
};
Gpus parse_gpus(std::string_view text);

}  // namespace mneme
