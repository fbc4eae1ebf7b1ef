// Templates that loop, multiply or grow without bound end in an error with the reason.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/errors.h"
#include "tests/fakes/sanitizer.h"
#include "tests/fakes/test_files.h"
#include "text/chat_encoder.h"

namespace longshore {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(test_data() + "/text/golden/chat");
  return loaded;
}

const Json kTwo = Json::array(
    {{{"role", "user"}, {"content", "one"}}, {{"role", "assistant"}, {"content", "x"}}});

std::string outcome_of(const std::string& source) {
  try {
    const ChatTemplate chat = ChatTemplate::from_text(source, tokenizer(), "2024-07-26", "test");
    return "rendered: " + chat.render(kTwo, {}).text;
  } catch (const ChatProblem& problem) {
    return problem.what();
  } catch (const DataError& error) {
    return error.what();
  }
}

// Returns a loop that sets ns.x to the value of `expression` again and again.
std::string repeated(const std::string& expression) {
  return "{% set ns = namespace(x='abcdefgh', l=messages) %}{% for i in range(9999) %}{% set ns.x "
         "= " +
         expression + " %}{% endfor %}{{ ns.x|length }}";
}

std::string list_repeated(const std::string& expression) {
  return "{% set ns = namespace(l=messages) %}{% for i in range(99999) %}{% set ns.l = " +
         expression + " %}{% endfor %}{{ ns.l|length }}";
}

constexpr const char* kText = "makes a text of more than 64 MiB";
constexpr const char* kList = "makes a list of more than 4194304 items";
constexpr const char* kEndless = "does not come to an end";
constexpr const char* kDeep = "nests deeper than 100 levels";
constexpr const char* kParts = "of more than 2000 parts";

struct Bomb {
  std::string source, message;
};

std::vector<Bomb> texts_that_grow() {
  return {{repeated("ns.x ~ ns.x"), kText},
          {repeated("ns.x + ns.x"), kText},
          {repeated("ns.x * 99"), kText},
          {repeated("ns.x|replace('a', 'aaaa')"), kText},
          {repeated("ns.x.replace('a', 'aaaa')"), kText},
          {repeated("[ns.x, ns.x, ns.x]|join(ns.x)"), kText},
          {repeated("ns.x.join([ns.x, ns.x, ns.x])"), kText},
          {"{{ 'a\nb'|indent(99999999999) }}", kText},
          {"{{ 'a\nb'|indent(width=99999999999) }}", kText},
          {"{{ '%99999999999d'|format(1) }}", kText},
          {"{{ '%*d'|format(99999999999, 1) }}", kText},
          {"{{ '{:>99999999999}'.format(1) }}", kText},
          {"{% set n = 6000000 %}{{ messages|tojson(separators=('x' * n, ':' * n)) }}", kText},
          {"{% set n = 60000000 %}{{ messages|tojson(indent='x' * n) }}", kText},
          {"{% set n = 30000000 %}{{ strftime_now('%Y' * n) }}", kText},
          {"{{ ('a' * 99999999) ~ ('a' * 99999999) }}", "constants are multiplied"}};
}

std::vector<Bomb> lists_that_grow() {
  return {{list_repeated("ns.l * 90000"), kList},
          {"{{ [1]|batch(99999999999, 'x') }}", kList},
          {"{{ [1]|slice(99999999999, 'x') }}", kList},
          {"{% set n = 60000000 %}{{ ('x' * n)|list|length }}", kList},
          {"{% set n = 30000000 %}{{ ('x ' * n).split(' ')|length }}", kList},
          {list_repeated("[ns.l]"), kDeep},
          {list_repeated("{'a': ns.l}"), kDeep},
          {list_repeated("namespace(l=ns.l)"), kDeep},
          {list_repeated("ns.l|batch(1)"), kDeep}};
}

// minijinja counts references, so values that hold themselves leak a few hundred bytes per
// rendering; sanitizers report that.
std::vector<Bomb> values_that_hold_themselves() {
  if (kSanitized) return {};
  return {{"{% set ns = namespace() %}{% set ns.x = ns %}{{ ns|tojson }}", kDeep},
          {"{% set a = namespace() %}{% set a.x = a %}{% set b = namespace() %}{% set b.x = b %}"
           "{{ a == b }}",
           kDeep}};
}

std::vector<Bomb> endless() {
  const std::string big = "{% set n = 60000000 %}{% set s = 'x' * n %}{% for i in range(99999) %}";
  return {{list_repeated("ns.l + [ns.l[0]]"), kEndless},
          {big + "{% if 'y' in s %}{% endif %}{% endfor %}", kEndless},
          {big + "{% set t = s|trim %}{% endfor %}", kEndless},
          {"{% for i in range(99999) %}" + std::string(100000, 'y') + "{% endfor %}",
           "prints more than 256 MiB"},
          {"{% set x %}{% for i in range(99999) %}" + std::string(100000, 'y') +
               "{% endfor %}{% endset %}",
           "prints more than 256 MiB"}};
}

std::string chain(const std::string& link, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += link;
  return text;
}

// Goal: each template that grows without bound gives its own message instead of ending the process.
TEST(ChatBudget, WhatGrowsIsRefusedBeforeItIsMade) {
  for (const auto& bombs :
       {texts_that_grow(), lists_that_grow(), values_that_hold_themselves(), endless()}) {
    for (const Bomb& bomb : bombs) {
      const std::string said = outcome_of(bomb.source);
      EXPECT_NE(said.find(bomb.message), std::string::npos) << bomb.source.substr(0, 200) << "\n"
                                                            << said.substr(0, 200);
    }
  }
  if (kSanitized) return;  // sanitizers keep freed memory for a while
  // Other threads may hold memory; no rendering holds more than half a GiB.
  struct rusage usage{};
  ASSERT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
  EXPECT_LT(usage.ru_maxrss, 1500 * 1024);
}

// Goal: expressions whose depth would overflow the compiler's stack are refused.
TEST(ChatBudget, VeryLongExpressionsAreRefused) {
  for (const std::string& source :
       {"{{ messages" + chain(" ~ messages", 100000) + " }}",
        "{{ " + chain("(", 100000) + "1" + chain(")", 100000) + " }}",
        "{% if " + chain("x or ", 100000) + "x %}a{% endif %}",
        "{% if " + chain("not ", 100000) + "x %}a{% endif %}",
        "{{ messages" + chain("|list", 100000) + " }}",
        "{% if x %}" + chain("{% elif x %}a", 100000) + "{% endif %}"}) {
    EXPECT_NE(outcome_of(source).find(kParts), std::string::npos) << source.substr(0, 60);
  }
  const std::string nested = chain("{% if 1 %}", 100000) + chain("{% endif %}", 100000);
  EXPECT_NE(outcome_of(nested).find("recursion"), std::string::npos);
}

// Goal: the limits change no output of a template within bounds.
TEST(ChatBudget, OperatorsAndFiltersGiveWhatTheyGaveBefore) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{{ 'a' ~ 1 ~ none ~ true }}", "a1NoneTrue"},
      {"{{ [1, 2] + [3] }}", "[1, 2, 3]"},
      {"{{ (1, 2) + (3,) }}", "(1, 2, 3)"},
      {"{{ 2 + 3 * 4 - 1.5 }}", "12.5"},
      {"{{ 'ab' * 2 ~ 3 * 'c' }}", "ababccc"},
      {"{{ [1, 2] * 2 }}", "[1, 2, 1, 2]"},
      {"{{ 'abcdef'[1:4] ~ 'abcdef'[::-2] ~ 'abcdef'[-2:] }}", "bcdfdbef"},
      {"{{ [1, 2, 3, 4][1:] }}{{ [1, 2, 3, 4][:-1] }}{{ [1, 2, 3][::-1] }}",
       "[2, 3, 4][1, 2, 3][3, 2, 1]"},
      {"{{ (1, 2, 3)[5:] }}{{ [1, 2, 3][-9:2] }}{{ none[1:] }}", "()[1, 2][]"},
      {"{{ messages[1:]|length }}{{ messages|map(attribute='role')|join(',') }}",
       "1user,assistant"},
      {"{{ 1 < 2 < 3 }}{{ 'a' in 'cab' }}{{ 'x' not in ['a'] }}{{ 'role' in messages[0] }}",
       "TrueTrueTrueTrue"},
      {"{{ messages[0] == messages[0] }}{{ messages[0] != messages[1] }}", "TrueTrue"},
      {"{{ 'a\nb'|indent(2) }}{{ 'x'|replace('x', 'yy') }}{{ ' t '|trim }}", "a\n  byyt"},
      {"{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}"
       "{% endfor %}{{ ns.n }}",
       "3"},
      {"{% macro f(x, y=2) %}{{ x * y }}{% endmacro %}{{ f(4) }}{{ f(1, y=5) }}", "85"},
      {"{% for m in messages if m.role == 'user' %}{{ m.content }}{% else %}none{% endfor %}",
       "one"},
      {"{{ {'b': 1, 'a': [1, 'x']}|tojson }}", "{\"b\": 1, \"a\": [1, \"x\"]}"},
      {"{{ dict(a=1)['a'] }}{{ [3, 1, 2]|sort }}{{ [1, 1]|unique|list }}", "1[1, 2, 3][1]"},
      {"{% if messages[0]['content'] is string and 3 is odd %}yes{% endif %}", "yes"}};
  for (const auto& [source, text] : cases) {
    EXPECT_EQ(outcome_of(source), "rendered: " + text) << source;
  }
}

// Goal: a conversation of very many turns is refused if its answers can only be found by rendering
// each beginning, and accepted if the template marks them.
TEST(ChatBudget, VeryManyTurnsNeedMarksInTheTemplate) {
  Json messages = Json::array();
  std::string content;
  while (content.size() < (kSanitized ? 200 : 20'000)) content += "some words ";
  for (int turn = 0; turn < 200; ++turn) {
    messages.push_back({{"role", "user"}, {"content", content}});
    messages.push_back({{"role", "assistant"}, {"content", "answer"}});
  }
  const auto encode = [&](const std::string& source) {
    const ChatTemplate chat = ChatTemplate::from_text(source, tokenizer(), "2024-07-26", "test");
    return ChatEncoder(&tokenizer(), &chat).encode(messages, {}, ChatMask::kAssistant);
  };
  const std::string plain =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}";
  if (!kSanitized) {
    EXPECT_THROW(encode(plain), ChatProblem);
  }
  const std::vector<EncodedChat> marked = encode(
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}");
  ASSERT_EQ(marked.size(), 1u);
  const std::vector<bool>& trained = marked.front().trained;
  EXPECT_GT(std::count(trained.begin(), trained.end(), true), 200);
}

}  // namespace
}  // namespace longshore
