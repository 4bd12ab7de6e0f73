// Comma-separated values with quotes (RFC 4180). Untrusted.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "apps/eval/suites/rows.h"

namespace mneme::eval {

// Rows as objects of the first record's names.
//
// Errors  kFile; kFormat: a record with another number of fields, a quote that does not close, no record.
std::vector<Row> read_csv(const std::filesystem::path& path);

}  // namespace mneme::eval
