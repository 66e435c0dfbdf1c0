// The smallest program that needs the headers, the library and everything the library links.
#include <jiffy/jiffy.h>

int main() {
  int ran = 0;
  jiffy::Runtime runtime{jiffy::Options{}};
  runtime.run([&ran] { ran = 1; });
  return ran == 1 ? 0 : 1;
}
