#include "trainer/report/page.h"

#include <array>
#include <cmath>

#include "base/texts.h"

namespace longshore {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); gap: .6rem; }
dl div { border: 1px solid var(--line); border-radius: .5rem; padding: .4rem .8rem; min-width: 0; }
dt { font-size: .8rem; opacity: .7; }
dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); }
th, td { max-width: 28rem; overflow-wrap: break-word; }
th { font-weight: 500; } thead th { opacity: .7; } td { font-variant-numeric: tabular-nums; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px; }
)";

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        // HTML allows no other control characters; their Unicode pictures replace them.
        if (letter == '\x7f') {
          out += "&#x2421;";
        } else if (letter >= 0 && letter < ' ' && letter != '\n' && letter != '\t') {
          out += "&#" + std::to_string(0x2400 + letter) + ";";
        } else {
          out += letter;
        }
    }
  }
  return out;
}

std::string page_head(std::string_view title, std::string_view style) {
  return "<!doctype html>\n<html lang='en'><meta charset='utf-8'>"
         "<meta name='viewport' content='width=device-width'>\n<title>" +
         escape_html(title) + "</title>\n<style>" + kStyle + std::string(style) + "</style>\n";
}

std::string fact_boxes(const std::vector<Fact>& facts) {
  std::string html = "<dl>";
  for (const Fact& fact : facts) {
    html += "<div><dt>" + escape_html(fact.name) + "</dt><dd>" + escape_html(fact.value) +
            "</dd></div>";
  }
  return html + "</dl>";
}

std::string table_of(const std::vector<std::string>& head,
                     const std::vector<std::vector<std::string>>& rows) {
  std::string html = "<div class='table'><table><thead><tr>";
  for (const std::string& cell : head) html += "<th>" + cell + "</th>";
  html += "</tr></thead>\n";
  for (const std::vector<std::string>& row : rows) {
    html += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      const char* tag = i == 0 ? "th" : "td";
      html += std::string("<") + tag + ">" + row[i] + "</" + tag + ">";
    }
    html += "</tr>\n";
  }
  return html + "</table></div>";
}

std::string percent(double share) {
  return formatted("%.1f %%", 100.0 * share);
}

std::string short_number(double number, int digits) {
  constexpr std::array<const char*, 4> kUnits = {"", "k", "M", "G"};
  const double size = std::abs(number);
  size_t unit = 0;
  double scaled = number;
  while (std::abs(scaled) >= 9999.5 && unit + 1 < kUnits.size()) {
    scaled /= 1000.0;
    ++unit;
  }
  if (size >= 1000.0 && unit == 0) digits = std::max(digits, 4);
  return formatted("%.*g%s", digits, scaled, kUnits.at(unit));
}

}  // namespace longshore
