// Publishes the pages that the prefix cache stores and evicts, over ZeroMQ, in vLLM's form.
//
//   publish  PUB: topic | sequence number (8 bytes, big-endian) | batch (kv_event_wire.h)
//   replay   ROUTER: a subscriber that missed batches sends "" | first number; it gets "" | topic | number | batch for
//            each that is kept, then "" | topic | -1 | ""
//
// Batch 0 says AllBlocksCleared: numbers that begin again are how a subscriber sees that a replica was restarted.
// Pages of requests with a cache_salt are not published (PrefixCache).
//
// Threads  push() on any; the sockets are one thread's of its own. Nobody who pushes waits for the network.
// Source   vLLM's ZmqEventPublisher, vllm-router 0.1.17's subscriber.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "src/engine/loop/prefix_cache.h"

namespace mneme::server {

struct KvEventOptions {
  std::string publish;        // tcp://HOST:PORT; port *: any that is free
  std::string replay;         // the same; empty: no replay
  std::string topic;          // of every message
  std::size_t kept = 10'000;  // batches for the replay, as vLLM's
};

// PORT as tcp://127.0.0.1:PORT (0: *), tcp://... as it is.
//
// Errors  kOption, with `option`: neither.
std::string kv_event_endpoint(const std::string& text, std::string_view option);

class KvEventPublisher {
 public:
  // Binds.
  //
  // Errors  kOption: an address that is in use, or none of this machine; a build without libzmq.
  explicit KvEventPublisher(const KvEventOptions& options);
  // Sends what was pushed.
  ~KvEventPublisher();
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

  void push(const PageEvent& page);
  // With the port that was free.
  const std::string& endpoint() const;
  const std::string& replay_endpoint() const;  // empty: no replay

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme::server
