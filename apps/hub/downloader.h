// What needs a network: registered by apps/hub/curl, absent from a build without libcurl (src/base/backend.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "apps/hub/hub_cache.h"
#include "apps/hub/hub_settings.h"
#include "apps/hub/listing.h"
#include "apps/hub/repo_id.h"
#include "mneme/error.h"

namespace mneme::hub {

// What a user may see. All may be empty.
struct FetchEvents {
  // A file begins to arrive. `bytes`: its whole size.
  std::function<void(const std::string& path, std::int64_t bytes)> on_file;
  // Progress of the file that on_file named last; after each megabyte (10^6 bytes).
  std::function<void(std::int64_t done, std::int64_t total)> on_progress;
  // Something to know: waiting for another process, a connection that broke off.
  std::function<void(const std::string& line)> on_note;
};

// The endpoint says nothing about the repository: no network, no such host, no listener, busy for too long.
class Unreachable : public Error {
 public:
  explicit Unreachable(const std::string& message) : Error(ErrorKind::kFile, message) {}
};

// Everything that a fetch needs to know.
struct FetchContext {
  const RepoId& repo;
  const HubSettings& settings;
  const HubCache& cache;
  const FetchEvents& events;
};

struct Downloader {
  // The repository's files at the head of main. Errors  Unreachable; as parse_listing(); kFile: the endpoint refuses.
  Listing (*list)(const FetchContext& context);
  // Puts a file of the listing into its snapshot, unless it is there. Errors  as fetch_model().
  void (*fetch)(const FetchContext& context, const std::string& commit, const RepoFile& file);
};

}  // namespace mneme::hub
