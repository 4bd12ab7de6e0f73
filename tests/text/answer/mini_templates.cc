#include "tests/text/answer/mini_templates.h"

namespace mneme::answer_test {
namespace {

// `thought`: the marks around one; `calls`: of a message's tool_calls.
std::string with_calls(const std::string& open, const std::string& close, const std::string& calls) {
  return "{{ tools | tojson }}{% for m in messages %}<|turn|>{{ m.role }}\n"
         "{% if m.reasoning_content %}" +
         open + "{{ m.reasoning_content }}" + close + "{% endif %}{{ m.content }}{% if m.tool_calls %}" + calls +
         "{% endif %}<|over|>\n{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}";
}

}  // namespace

const std::vector<std::pair<std::string, std::string>>& mini_templates() {
  static const std::vector<std::pair<std::string, std::string>> kAll = {
      {"an object in a mark of its own",
       with_calls("<musing>\n", "\n</musing>\n",
                  "{% for c in m.tool_calls %}\n<do>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
                  "{{ c.function.arguments | tojson }}}\n</do>{% endfor %}")},
      {"a list of objects",
       with_calls("<musing>", "</musing>",
                  "<|batch|>[{% for c in m.tool_calls %}{\"tool\": \"{{ c.function.name }}\", \"input\": "
                  "{{ c.function.arguments | tojson }}}{% if not loop.last %}, {% endif %}{% endfor %}]<|/batch|>")},
      {"the name between marks, then JSON",
       with_calls("<|muse|>", "<|/muse|>",
                  "<|batch|>{% for c in m.tool_calls %}<|call|>{{ c.function.name }}<|with|>"
                  "{{ c.function.arguments | tojson }}<|/call|>{% endfor %}<|/batch|>")},
      {"one mark for each call, then JSON",
       with_calls("<|muse|>", "<|/muse|>",
                  "{% for c in m.tool_calls %}[CALL]{{ c.function.name }}[WITH]{{ c.function.arguments | tojson }}"
                  "{% endfor %}")},
      {"a tag for each argument",
       with_calls("<m>", "</m>",
                  "{% for c in m.tool_calls %}\n<use>\n<tool={{ c.function.name }}>\n"
                  "{% for k, v in c.function.arguments.items() %}<arg={{ k }}>\n"
                  "{{ v if v is string else v | tojson }}\n</arg>\n{% endfor %}</tool>\n</use>{% endfor %}")},
      {"tags with attributes in a section",
       with_calls("<m>", "</m>",
                  "\n<calls>\n{% for c in m.tool_calls %}<invoke tool=\"{{ c.function.name }}\">\n"
                  "{% for k, v in c.function.arguments.items() %}<with name=\"{{ k }}\">"
                  "{{ v if v is string else v | tojson }}</with>\n{% endfor %}</invoke>\n{% endfor %}</calls>")}};
  return kAll;
}

}  // namespace mneme::answer_test
