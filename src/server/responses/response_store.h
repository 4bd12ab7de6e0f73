// Responses that clients come back to by their id: previous_response_id, GET, DELETE. In memory, least recently used
// ones go first, and every one after some time.
//
// Threads  any.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace mneme::server {

struct StoredResponse {
  std::string owner;             // the key that asked; another one does not see it
  std::string id, previous;      // previous: the response that this one went on from; empty: none
  nlohmann::ordered_json input;  // items of its request alone, each with an id
  nlohmann::ordered_json response;
};

class ResponseStore {
 public:
  using Clock = std::chrono::steady_clock;
  using Stored = std::shared_ptr<const StoredResponse>;

  // At most so many bytes (0: nothing is stored), each for so many seconds after its last use.
  ResponseStore(std::size_t bytes, double seconds, std::function<Clock::time_point()> now = Clock::now);

  bool is_on() const { return bytes_ > 0; }
  void put(StoredResponse response);
  // Null: none of this owner.
  Stored find(const std::string& owner, const std::string& id);
  // It and those it went on from, the first one first; empty: one of them is gone. A use of all of them.
  std::vector<Stored> chain(const std::string& owner, const std::string& id);
  // An input or output item that is not itself a reference; null: none of this owner.
  nlohmann::ordered_json find_item(const std::string& owner, const std::string& id);
  bool erase(const std::string& owner, const std::string& id);
  std::size_t used_bytes() const;

 private:
  struct Entry {
    Stored response;
    std::size_t bytes = 0;
    Clock::time_point used;
  };
  using Entries = std::list<Entry>;  // the last used one first
  void expire();
  void drop(Entries::iterator entry);
  Stored use(const std::string& owner, const std::string& id);

  const std::size_t bytes_;
  const std::chrono::duration<double> seconds_;
  const std::function<Clock::time_point()> now_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::unordered_map<std::string, Entries::iterator> by_id_;
  std::size_t used_ = 0;
};

}  // namespace mneme::server
