#include "apps/eval/suites/ruler_sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "apps/eval/scorers/words.h"
#include "apps/eval/suites/rows.h"
#include "src/base/error.h"

namespace mneme::eval {
namespace {

namespace fs = std::filesystem;

std::string file_text(const fs::path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

nlohmann::json file_json(const fs::path& path) {
  nlohmann::json all = nlohmann::json::parse(file_text(path), nullptr, false);
  if (all.is_discarded()) fail(ErrorKind::kFormat, "{}: expected a JSON document", path.string());
  return all;
}

std::vector<std::string> words_of(const fs::path& path) {
  std::vector<std::string> words;
  const std::string text = file_text(path);
  for (std::string_view line : split_at(text, '\n'))
    if (!stripped(line).empty()) words.emplace_back(stripped(line));
  return words;
}

// The values of {"0": "word", ...}.
std::vector<std::string> more_words_of(const fs::path& path) {
  const Row row(path.string(), file_json(path));
  std::vector<std::string> words;
  for (const auto& [key, value] : row.value().items()) words.push_back(row.text(key));
  return words;
}

const nlohmann::json& array_in(const Row& row, std::string_view field) {
  const auto found = row.value().find(field);
  if (found == row.value().end() || !found->is_array())
    row.fail_field(field, "an array", found == row.value().end() ? "nothing" : found->type_name());
  return *found;
}

std::vector<Row> rows_in(const Row& row, std::string_view field) {
  std::vector<Row> rows;
  for (const auto& item : array_in(row, field))
    rows.emplace_back(fmt::format("{}: {}[{}]", row.where(), field, rows.size()), item);
  return rows;
}

// Documents by text, each once, sorted.
class Documents {
 public:
  void add(std::string text) { index_.emplace(std::move(text), 0); }
  void close(RulerDocuments& out) {
    for (auto& [text, index] : index_) {
      index = out.documents.size();
      out.documents.push_back(text);
    }
  }
  std::size_t at(const std::string& text) const { return index_.at(text); }

 private:
  std::map<std::string, std::size_t> index_;
};

RulerDocuments squad_of(const fs::path& path) {
  RulerDocuments out;
  Documents documents;
  const auto articles = rows_in(Row(path.string(), file_json(path)), "data");
  for (const Row& article : articles)
    for (const Row& paragraph : rows_in(article, "paragraphs")) documents.add(paragraph.text("context"));
  documents.close(out);
  for (const Row& article : articles) {
    std::set<std::size_t> of_article;
    const auto paragraphs = rows_in(article, "paragraphs");
    for (const Row& paragraph : paragraphs) of_article.insert(documents.at(paragraph.text("context")));
    for (const Row& paragraph : paragraphs)
      for (const Row& asked : rows_in(paragraph, "qas")) {
        if (asked.text_or("is_impossible", "false") == "true") continue;
        RulerDocuments::Question q{asked.text("question"), {}, {documents.at(paragraph.text("context"))}, {}};
        for (const Row& answer : rows_in(asked, "answers")) q.answers.push_back(answer.text("text"));
        if (q.answers.empty()) asked.fail_field("answers", "at least one", "none");
        for (std::size_t d : of_article)
          if (d != q.gold.front()) q.near.push_back(d);
        out.questions.push_back(std::move(q));
      }
  }
  return out;
}

// "title, line end, sentences" of the paragraphs of a question's `context`.
std::vector<std::string> hotpot_paragraphs(const Row& row) {
  std::vector<std::string> all;
  for (const auto& pair : array_in(row, "context")) {
    const bool is_pair = pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_array();
    std::string text = is_pair ? pair[0].get<std::string>() + "\n" : "";
    for (std::size_t i = 0; is_pair && i < pair[1].size(); ++i)
      text += pair[1][i].is_string() ? pair[1][i].get<std::string>() : "";
    if (!is_pair) row.fail_field("context", "pairs of a title and its sentences", pair.type_name());
    all.push_back(std::move(text));
  }
  if (all.empty()) row.fail_field("context", "at least one paragraph", "none");
  return all;
}

RulerDocuments hotpotqa_of(const fs::path& path) {
  RulerDocuments out;
  Documents documents;
  const RowFile file(path);
  for (std::size_t i = 0; i < file.size(); ++i)
    for (std::string& text : hotpot_paragraphs(file.row(i))) documents.add(std::move(text));
  documents.close(out);
  for (std::size_t i = 0; i < file.size(); ++i) {
    const Row row = file.row(i);
    RulerDocuments::Question q{row.text("question"), {row.text("answer")}, {}, {}};
    for (const std::string& text : hotpot_paragraphs(row)) {
      const std::size_t d = documents.at(text);
      if (std::find(q.gold.begin(), q.gold.end(), d) == q.gold.end()) q.gold.push_back(d);
    }
    out.questions.push_back(std::move(q));
  }
  return out;
}

using Take = void (*)(const fs::path& path, RulerSources& out);
struct SourceFile {
  std::string_view name;
  Take take;
};
constexpr SourceFile kFiles[] = {
    {"PaulGrahamEssays.json",
     [](const fs::path& p, RulerSources& out) { out.essays = Row(p.string(), file_json(p)).text("text"); }},
    {"nounlist.txt", [](const fs::path& p, RulerSources& out) { out.nouns = words_of(p); }},
    {"adjectivelist.txt", [](const fs::path& p, RulerSources& out) { out.adjectives = words_of(p); }},
    {"verblist.txt", [](const fs::path& p, RulerSources& out) { out.verbs = words_of(p); }},
    {"english_words.json", [](const fs::path& p, RulerSources& out) { out.more_words = more_words_of(p); }},
    {"squad.json", [](const fs::path& p, RulerSources& out) { out.one_hop = squad_of(p); }},
    {"dev-v2.0.json", [](const fs::path& p, RulerSources& out) { out.one_hop = squad_of(p); }},
    {"hotpotqa.json", [](const fs::path& p, RulerSources& out) { out.two_hops = hotpotqa_of(p); }},
    {"hotpot_dev_distractor_v1.json", [](const fs::path& p, RulerSources& out) { out.two_hops = hotpotqa_of(p); }},
};

std::vector<fs::path> files_in(const fs::path& folder, std::string_view ending) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return {};
  try {
    return files_of(folder, ending);
  } catch (const Error&) {  // none with this ending
    return {};
  }
}

}  // namespace

std::shared_ptr<const RulerSources> read_ruler_sources(const fs::path& folder) {
  auto out = std::make_shared<RulerSources>();
  bool found = false;
  for (const char* ending : {".json", ".txt"})
    for (const fs::path& path : files_in(folder, ending))
      for (const SourceFile& file : kFiles)
        if (path.filename() == file.name) {
          file.take(path, *out);
          found = true;
        }
  if (!found) return nullptr;
  if (!out->essays.empty() && split_words(out->essays).empty()) out->essays.clear();
  return out;
}

}  // namespace mneme::eval
