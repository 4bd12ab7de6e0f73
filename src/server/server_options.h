// Options of the server: each with its default, its unit, and what it is for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mneme/options.h"
#include "src/engine/loop/disk_tier.h"
#include "src/server/api/key_policies.h"
#include "src/server/api/presets.h"
#include "src/server/events/kv_event_publisher.h"

namespace mneme::server {

// Where the server listens, and who may call.
struct ListenOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;               // 0: any that is free
  std::vector<std::string> api_keys;       // any of them; empty: no key is needed
  std::vector<KeyPolicy> key_policies;     // more keys, each with its limits
  std::vector<std::string> cors_origins;   // that browsers may call from; empty: none but the server's own
  std::vector<std::string> allowed_hosts;  // besides the loopback's names, where no key is needed
};

// The origin that a browser may read the answer from; empty: none.
inline std::string allowed_origin(const ListenOptions& options, std::string_view origin) {
  for (const std::string& allowed : options.cors_origins)
    if (allowed == "*" || (!origin.empty() && allowed == origin)) return allowed;
  return {};
}

struct ServerLimits {
  std::int64_t max_queue = 1024;  // answers that wait, beyond those that run; then 429
  int max_connections = 2048;
  std::int32_t max_header_bytes = 16 << 10;
  std::int64_t max_body_bytes = std::int64_t{64} << 20;
  std::size_t max_unsent_bytes = 8 << 20;  // of an answer that the client does not read
};

struct ServerTimeouts {
  double request_seconds = 3600;  // from arrival to the last token, and the most that a request may ask for
  double read_seconds = 60;       // for a request's header and body
  double idle_seconds = 75;       // of a connection between requests
  double write_seconds = 60;      // that a client may leave an answer unread
  double drain_seconds = 0;       // after the order to stop: /health says so, and requests are still taken
  double shutdown_seconds = 30;   // for answers that run, after that
};

// Responses of /v1/responses that are kept for previous_response_id.
struct ResponseStoreOptions {
  std::size_t bytes = 64 << 20;  // 0: none
  double seconds = 3600;         // after the last use
};

struct ServerOptions {
  std::filesystem::path model;
  std::string served_name;                          // empty: the file's or folder's name
  std::string chat_template;                        // Jinja, or the name of one of the model's; empty: its own
  std::string answer_format;                        // empty: found; "none"; the name of a known one; a format as JSON
  std::string thought_field = "reasoning_content";  // of answers in chats
  EngineOptions engine;
  std::vector<Preset> presets;  // models of their own: served_name:NAME
  ListenOptions listen;
  ServerLimits limits;
  ServerTimeouts timeouts;
  ResponseStoreOptions responses;

  int default_max_tokens = 4096;  // of a chat answer that names none
  bool prefix_cache = true;
  std::filesystem::path slot_path;  // empty: slots cannot be saved
  std::int32_t n_slots = 16;
  std::int64_t host_bytes = 0;              // of the host tier, under the prefix cache and above the disk; 0: none
  std::optional<DiskOptions> disk;          // under the prefix cache
  std::optional<KvEventOptions> kv_events;  // of the prefix cache
  std::string metrics_prefix = "mneme";     // of the metrics' names
  double stream_seconds = 0.02;             // at least, between pieces of streams; 0: every token on its own
  double heartbeat_seconds = 15;            // a comment in a stream that has nothing to say

  // One line for each request and each event; may be called on any thread.
  std::function<void(std::string_view line)> log = [](std::string_view) {};
};

inline bool asks_for_key(const ListenOptions& o) {
  return !o.api_keys.empty() || !o.key_policies.empty();
}

// The host is this machine's own, which no other machine reaches.
inline bool is_loopback(std::string_view host) {
  return host == "127.0.0.1" || host == "::1" || host == "localhost";
}

}  // namespace mneme::server
