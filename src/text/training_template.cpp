#include "text/chat_template.h"

#include <array>
#include <cstdint>
#include <span>

#include "base/errors.h"
#include "base/hash.h"

namespace longshore {
namespace {

// Edit: a part of the published text, which occurs once, and its replacement.
struct Edit {
  std::string_view published, training;
};

// The edits write thoughts in every answer after the first question, not only after the last. With
// thinking turned off, the empty thought is part of the prompt.
constexpr std::array kQwen3 = {
    Edit{R"(
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
)",
         R"(
{%- for message in messages %}
    {%- set index = loop.index0 %}
)"},
    Edit{R"(
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' +)"
         R"( reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
)",
         R"(
        {%- set thought = '' %}
        {%- set written = content %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- set thought = '<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' %}
            {%- set written = content.lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {%- if enable_thinking is defined and enable_thinking is false and thought ==)"
         R"( '<think>\n\n</think>\n\n' %}
            {{- thought }}
            {%- set thought = '' %}
        {%- endif %}
        {%- generation %}
        {{- thought + written }}
)"},
    Edit{R"(
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
)",
         R"(
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\n' }}
    {%- elif message.role == "tool" %}
)"},
};  // namespace longshore

// The prompt opens a thought; the published text omits that opening before answers.
constexpr std::array kDeepSeekR1Distill = {
    Edit{R"({{'<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>'}})",
         R"({{'<｜tool▁outputs▁end｜>'}}{% generation %}{{message['content'] + )"
         R"('<｜end▁of▁sentence｜>'}}{% endgeneration %})"},
    Edit{R"({% if '</think>' in content %}{% set content =)"
         R"( content.split('</think>')[-1] %}{% endif %})"
         R"({{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}})",
         R"({% set thought = message.reasoning_content if message.reasoning_content is)"
         R"( string else '' %})"
         R"({% if '</think>' in content %}{% if not thought %})"
         R"({% set thought = content.split('</think>')[0].split('<think>')[-1] %}{% endif %})"
         R"({% set content = content.split('</think>')[-1] %}{% endif)"
         R"( %}{{'<｜Assistant｜><think>\n'}})"
         R"({% generation %}{{thought | trim + '\n</think>\n\n' + content.lstrip('\n') + )"
         R"('<｜end▁of▁sentence｜>'}}{% endgeneration %})"},
};

constexpr std::array kGptOss = {
    Edit{R"(
            {%- elif message.content and not future_final_message.found %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" +)"
         R"( message.content + "<|end|>" }}
            {%- elif message.thinking and not future_final_message.found %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" +)"
         R"( message.thinking + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant to=" }}
)",
         R"(
            {%- endif %}
            {{- "<|start|>assistant" }}
            {%- generation %}
            {%- if message.content %}
                {{- "<|channel|>analysis<|message|>" + message.content +)"
         R"( "<|end|><|start|>assistant" }}
            {%- elif message.thinking %}
                {{- "<|channel|>analysis<|message|>" + message.thinking +)"
         R"( "<|end|><|start|>assistant" }}
            {%- endif %}
            {{- " to=" }}
)"},
    Edit{R"(
            {{- "<|call|>" }}
)",
         R"(
            {{- "<|call|>" }}
            {%- endgeneration %}
)"},
    Edit{R"(
        {%- elif loop.last and not add_generation_prompt %}
)",
         R"(
        {%- else %}
            {{- "<|start|>assistant" }}
            {%- generation %}
)"},
    Edit{R"(
                {{- "<|start|>assistant<|channel|>analysis<|message|>" +)"
         R"( message.thinking + "<|end|>" }}
            {%- endif %}
            {#- <|return|> indicates)",
         R"(
                {{- "<|channel|>analysis<|message|>" + message.thinking +)"
         R"( "<|end|><|start|>assistant" }}
            {%- endif %}
            {#- <|return|> indicates)"},
    Edit{R"(
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content +)"
         R"( "<|return|>" }}
        {%- else %}
            {#- CoT is dropped during all previous turns, so we never render it for inference #}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
)",
         R"(
            {{- "<|channel|>final<|message|>" + message.content + "<|return|>" }}
            {%- endgeneration %}
)"},
};

constexpr std::string_view kLlama3Answer =
    R"({{ content }}{% if message['role'] == 'assistant' %}{% generation %})"
    R"({{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}{% else %})"
    R"({{ message['content'] | trim + '<|eot_id|>' }}{% endif %})";

constexpr Edit kLlama3Head = {"\n\n'+ message['content'] | trim + '<|eot_id|>' %}", "\n\n' %}"};

constexpr std::array kLlama3 = {kLlama3Head, Edit{"{{ content }}", kLlama3Answer}};

// The first published text appends a prompt to every conversation; the edit makes it conditional.
constexpr std::array kLlama3Asking = {
    kLlama3Head,
    Edit{"{{ content }}", kLlama3Answer},
    Edit{"{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}",
         "{% endfor %}{% if add_generation_prompt %}"
         "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"},
};

constexpr Edit kLlama31Text = {
    R"(
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+)"
    R"( message['content'] | trim + '<|eot_id|>' }}
)",
    R"(
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
        {%- if message['role'] == 'assistant' %}
            {%- generation %}
            {{- message['content'] | trim + '<|eot_id|>' }}
            {%- endgeneration %}
        {%- else %}
            {{- message['content'] | trim + '<|eot_id|>' }}
        {%- endif %}
)"};

constexpr std::array kLlama31 = {
    kLlama31Text,
    Edit{R"(
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
)",
         R"(
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
        {%- generation %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
)"},
    Edit{R"(
        {%- else  %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
)",
         R"(
        {%- else  %}
)"},
    Edit{R"(
            {{- "<|eot_id|>" }}
        {%- endif %}
    {%- elif message.role == "tool")",
         R"(
            {{- "<|eot_id|>" }}
        {%- endif %}
        {%- endgeneration %}
    {%- elif message.role == "tool")"},
};

constexpr std::array kLlama32 = {
    kLlama31Text,
    Edit{R"(
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "')",
         R"(
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
        {%- generation %}
        {{- '{"name": "')"},
    Edit{R"(
        {{- "}" }}
        {{- "<|eot_id|>" }}
)",
         R"(
        {{- "}" }}
        {{- "<|eot_id|>" }}
        {%- endgeneration %}
)"},
};

struct Known {
  std::string_view name;
  uint64_t hash;  // of the published text
  std::span<const Edit> edits;
};

constexpr std::array kKnown = {
    Known{"Qwen3", 0xc9e0155c80737cf2, kQwen3},
    Known{"Qwen3", 0x0283f874ff58d644, kQwen3},
    Known{"DeepSeek R1 distills", 0x55b25ceb4910aa64, kDeepSeekR1Distill},
    Known{"gpt-oss", 0xb619f5c43a935065, kGptOss},
    Known{"Llama 3", 0xb97891b7adc1beb8, kLlama3Asking},
    Known{"Llama 3", 0x9799ad6e2dea0594, kLlama3},
    Known{"Llama 3.1", 0x6ca7779b7730196a, kLlama31},
    Known{"Llama 3.2", 0xc3d57e38f5ff0756, kLlama32},
};

std::string known_names() {
  std::string names;
  for (size_t i = 0; i < kKnown.size(); ++i) {
    if (i > 0 && kKnown[i].name == kKnown[i - 1].name) continue;
    names += (names.empty() ? "" : ", ") + std::string(kKnown[i].name);
  }
  return names;
}

std::string edited(std::string text, std::span<const Edit> edits) {
  for (const Edit& edit : edits) {
    const size_t at = text.find(edit.published);
    LONGSHORE_CHECK(at != std::string::npos) << "a training template's edit is of another text";
    LONGSHORE_CHECK(text.find(edit.published, at + 1) == std::string::npos);
    text.replace(at, edit.published.size(), edit.training);
  }
  return text;
}

}  // namespace

TrainingTemplate training_template(std::string_view published, const std::string& origin) {
  // Jinja removes one line feed at the end of a template.
  if (published.ends_with('\n')) published.remove_suffix(1);
  const uint64_t hash = hash64(published);
  for (const Known& known : kKnown) {
    if (known.hash != hash) continue;
    return {std::string(known.name), edited(std::string(published), known.edits)};
  }
  throw DataError(origin + ": data.chat_template = \"training\" knows the templates of " +
                  known_names() +
                  " as they were published, and this is none of them; leave data.chat_template at "
                  "\"auto\" (a conversation may become several samples), or name a copy of the "
                  "template with {% generation %} and {% endgeneration %} around what the model "
                  "writes");
}

}  // namespace longshore
