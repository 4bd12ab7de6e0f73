// A chat template that shows all of an agent's conversation.
#pragma once

namespace mneme::server_test {

// Shows roles, thoughts, calls and their results; raises where a system text is not the first message.
inline constexpr const char* kAgentTemplate =
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }} {% endfor %}</tools>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
    "<|user|>{{ m.role }}: "
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking %}<think>\n{% endif %}{% endif %}";

}  // namespace mneme::server_test
