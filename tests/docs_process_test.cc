// The README and the pages of docs/: their code compiles, and what they print of the source is
// true.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "sched/mode_table.h"

namespace jiffy {

namespace {

namespace fs = std::filesystem;

const fs::path kSource = JIFFY_SOURCE_DIR;

std::string read_file(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<fs::path> pages() {
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(kSource)) {
    if (entry.path().extension() == ".md") all.push_back(entry.path());
  }
  for (const auto& entry : fs::directory_iterator(kSource / "docs")) {
    if (entry.path().extension() == ".md") all.push_back(entry.path());
  }
  return all;
}

struct Block {
  std::string where;  // "docs/sync.md:26"
  std::string text;
};

// The blocks marked cpp.
std::vector<Block> code_blocks() {
  std::vector<Block> blocks;
  for (const fs::path& page : pages()) {
    std::istringstream lines(read_file(page));
    bool inside = false;
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line == "```cpp") {
        const std::string name = fs::relative(page, kSource).string();
        blocks.push_back({name + ":" + std::to_string(number + 1), ""});
        inside = true;
      } else if (line == "```") {
        inside = false;
      } else if (inside) {
        blocks.back().text += line + "\n";
      }
    }
  }
  return blocks;
}

bool is_program(const Block& block) { return block.text.find("int main(") != std::string::npos; }

std::string line_directive(const Block& block) {
  const size_t colon = block.where.rfind(':');
  return "#line " + block.where.substr(colon + 1) + " \"" + block.where.substr(0, colon) + "\"\n";
}

// All public headers, and each block as a function that has a runtime `rt`.
std::string snippets_file(const std::vector<Block>& blocks) {
  std::string text;
  for (const auto& entry : fs::directory_iterator(kSource / "runtime/include/jiffy")) {
    if (entry.path().extension() != ".h") continue;
    text += "#include <jiffy/" + entry.path().filename().string() + ">\n";
  }
  text +=
      "#include <cstdio>\n#include <mutex>\n#include <stdexcept>\n"
      "using namespace std::chrono_literals;\n";
  int number = 0;
  for (const Block& block : blocks) {
    if (is_program(block)) continue;
    text += "void block_" + std::to_string(++number) +
            "([[maybe_unused]] jiffy::Runtime& rt) {\n{\n" + line_directive(block) + block.text +
            "}\n}\n";
  }
  return text;
}

// The compiler's messages; empty if all is well.
std::string compile(const std::string& text) {
  const char* compiler = std::getenv("CXX");
  const fs::path file =
      fs::temp_directory_path() / ("jiffy-docs-" + std::to_string(getpid()) + ".cc");
  std::ofstream(file) << text;
  const std::string command = "LC_ALL=C " + std::string(compiler != nullptr ? compiler : "c++") +
                              " -std=c++20 -fsyntax-only -Wall -Wextra -I" +
                              (kSource / "runtime/include").string() + " " + file.string() +
                              " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char part[4096];
  for (size_t n = 0; pipe != nullptr && (n = fread(part, 1, sizeof part, pipe)) > 0;) {
    output.append(part, n);
  }
  const int status = pipe != nullptr ? pclose(pipe) : -1;
  fs::remove(file);
  if (status != 0 && output.empty()) output = "failed: " + command;
  return output;
}

}  // namespace

TEST(Docs, SnippetsCompile) {
  const std::string messages = compile(snippets_file(code_blocks()));
  EXPECT_TRUE(messages.empty()) << messages;
}

TEST(Docs, ProgramsCompile) {
  for (const Block& block : code_blocks()) {
    if (!is_program(block)) continue;
    const std::string messages = compile(line_directive(block) + block.text);
    EXPECT_TRUE(messages.empty()) << messages;
  }
}

TEST(Docs, TheProgramOfTheReadmeIsTheExample) {
  const std::string example = read_file(kSource / "examples/hello.cc");
  EXPECT_NE(read_file(kSource / "README.md").find("```cpp\n" + example + "```\n"),
            std::string::npos);
}

TEST(Docs, TheModeTableIsPrintedInFull) {
  // In the order of Act.
  constexpr const char* kActs[] = {"sets hard", "sets lazy", "makes it hard", "-",
                                   "if hard",   "if any",    "always"};
  std::string table;
  for (const ModeRule& rule : kModeTable) {
    table += std::string("| ") + rule.what + " |";
    for (const Act act : rule.act)
      table += std::string(" ") + kActs[static_cast<size_t>(act)] + " |";
    table += "\n";
  }
  EXPECT_NE(read_file(kSource / "docs/preemption.md").find(table), std::string::npos)
      << "docs/preemption.md should have these rows:\n"
      << table;
}

TEST(Docs, LinksLeadToFiles) {
  for (const fs::path& page : pages()) {
    const std::string text = read_file(page);
    for (size_t at = text.find("]("); at != std::string::npos; at = text.find("](", at + 2)) {
      const std::string target = text.substr(at + 2, text.find(')', at) - at - 2);
      if (target.find("://") != std::string::npos || target.find(' ') != std::string::npos)
        continue;
      EXPECT_TRUE(fs::exists(page.parent_path() / target.substr(0, target.find('#'))))
          << page << " links to " << target;
    }
  }
}

}  // namespace jiffy
