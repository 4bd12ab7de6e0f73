// A model of a hub: in the cache, or fetched into it.
#pragma once

#include <filesystem>
#include <string>

#include "apps/hub/downloader.h"
#include "apps/hub/hub_settings.h"

namespace mneme::hub {

// Fetches the model that `name` ("OWNER/NAME[:QUANT]") names and returns what to open: a GGUF file, or a folder.
// Files that are in the cache are not fetched again; an interrupted one resumes. Only files whose hash
// is the one that the endpoint names get their final name. Offline, without libcurl, and where the endpoint cannot be
// reached or is busy, takes what the cache has.
//
// Errors  kOption       no name of a repository
//         kRequest      the repository has no such file, or several
//         kFile         the endpoint refuses (401, 403, 404, ...), breaks off again and again, or is not reachable; the
//                       disk is full or not writable; nothing is cached
//         kFormat       a listing, length or hash that contradicts another
//         kUnsupported  nothing is cached, and this build cannot download
std::filesystem::path fetch_model(const std::string& name, const HubSettings& settings, const FetchEvents& events);

}  // namespace mneme::hub
