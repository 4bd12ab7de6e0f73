// The files of the project as the house tests see them: relative paths, build folders and hidden ones left out.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mneme::house {

std::filesystem::path root();

// Files below `folder` (relative to the root, "" for all) whose extension is one of `extensions` (".cc"), sorted.
std::vector<std::filesystem::path> files(const std::string& folder, const std::vector<std::string>& extensions);

std::string read(const std::filesystem::path& relative);
std::vector<std::string> lines(const std::filesystem::path& relative);

}  // namespace mneme::house
