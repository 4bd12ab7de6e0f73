// The tables of the papers that the project reproduces: methods, budgets, regions, and how rows and columns lie.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace mneme::eval {

enum class TableLayout : std::uint8_t {
  kMethodRows,  // a row a method, a column a task, their mean
  kTaskRows,    // a row a task, a column a method
};

struct PaperEntry {
  std::string_view name;
  std::string_view title;
  std::vector<std::string_view> methods;  // in the syntax of --methods
  std::vector<std::int32_t> budgets;
  std::vector<std::string_view> suites;  // of its tables; any suite may be asked for
  TableLayout layout = TableLayout::kMethodRows;
  bool question_by_prefill = false;  // its methods decide at the end of a prompt, the question included
};

std::span<const PaperEntry> paper_table();
// Errors  kOption: no such paper (the known ones are named).
const PaperEntry& find_paper(std::string_view name);

}  // namespace mneme::eval
