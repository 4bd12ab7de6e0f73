// One file: what the endpoint says of it, its bytes, and their hash.
#pragma once

#include <string>

#include "apps/hub/downloader.h"

namespace mneme::hub {

// Fetches `file` of a commit into the cache and links it into the snapshot; returns at once where the snapshot has it.
// Bytes go to HASH.incomplete and stay there when a transfer breaks off: the next attempt, of this process or another
// one, asks for the rest alone.
//
// Errors  kFile: refused, broken off `tries` times without progress, disk full; kFormat: sizes or hashes that differ
//         from each other (nothing is kept of content with another hash).
void fetch_file(const FetchContext& context, const std::string& commit, const RepoFile& file);

// As Downloader::list.
Listing fetch_listing(const FetchContext& context);

}  // namespace mneme::hub
