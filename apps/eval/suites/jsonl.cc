// A user's own file, and books.
#include "apps/eval/suites/prompt.h"
#include "apps/eval/suites/rows.h"
#include "apps/eval/suites/suite.h"
#include "src/base/error.h"
#include "src/base/mapped_file.h"

namespace mneme::eval {

std::vector<SuiteContext> read_jsonl(const SuiteSetting& s) {
  std::vector<SuiteContext> contexts;
  for (const auto& file : files_of(s.data, ".jsonl")) {
    std::vector<SuiteContext> rows;
    add_rows(rows, file, file.stem().string(), s.samples,
             [fields = s.jsonl, tokens = s.max_tokens](const Row& row, std::string_view) {
               SuiteItem item;
               item.id = row.text_or(fields.id, "");
               Prompt prompt = fill_template(fields.prompt_template, fields.context,
                                             [&](std::string_view field) { return row.text(field); });
               item.prompt = std::move(prompt.text);
               item.question_bytes = prompt.question_bytes;
               item.reference.answers = row.texts(fields.answers);
               if (row.has(fields.task)) item.groups.push_back(row.text(fields.task));
               item.scorer = "contained";
               item.max_tokens = tokens > 0 ? tokens : 128;
               return item;
             });
    if (is_wanted(s.tasks, file.stem().string())) contexts.insert(contexts.end(), rows.begin(), rows.end());
  }
  return contexts;
}

// A book is one context; its text is the prompt. `max_tokens` counts its tokens.
std::vector<SuiteContext> read_pg19(const SuiteSetting& s) {
  std::vector<SuiteContext> contexts;
  for (const auto& file : files_of(s.data, ".txt")) {
    if (s.samples > 0 && std::ssize(contexts) >= s.samples) break;
    contexts.push_back({"pg19", 0, file.stem().string(), [file, tokens = s.max_tokens] {
                          const MappedFile book(file);
                          SuiteItem item;
                          item.id = file.stem().string();
                          item.prompt.assign(reinterpret_cast<const char*>(book.bytes().data()), book.bytes().size());
                          if (item.prompt.empty())
                            fail(ErrorKind::kFormat, "{}: expected text, found an empty file", file.string());
                          item.framing = Framing::kPlain;
                          item.max_tokens = tokens > 0 ? tokens : 4096;
                          item.reference.answers = {""};
                          return std::vector<SuiteItem>{std::move(item)};
                        }});
  }
  return contexts;
}

}  // namespace mneme::eval
