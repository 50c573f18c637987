#!/bin/sh
# Prints the folder of a Cassandra server: CASSANDRA_HOME, the one whose `cassandra` is on PATH, or its jars from Maven
# Central, copied once into the user's cache (64 MB, some 10 s). Java 11 or 17 is found, or installed with apt where
# that is allowed. Progress is on stderr; the folder is all that stdout gets.
set -eu
cd "$(dirname "$0")/.."
version=5.0.2
cache=${XDG_CACHE_HOME:-$HOME/.cache}/joulefeed
name=cassandra home=$cache/cassandra-$version build=$cache/cassandra-build
exec 3>&1 1>&2
. playbooks/environment.sh

give() { echo "$1" >&3; exit 0; }
has_jars() { ls "$1" "$1/lib" 2>/dev/null | grep -Eq '^apache-cassandra-([5-9]|[1-9][0-9])\..*\.jar$'; }
# loaders/nosql/server/installation.py looks for it in the same places.
find_java() {
  for java in "${JAVA_HOME:-/nowhere}/bin/java" java /usr/lib/jvm/java-17*/bin/java /usr/lib/jvm/java-11*/bin/java; do
    case $("$java" -version 2>&1 | grep ' version "') in *'"17'* | *'"11'*) return 0 ;; esac
  done
  return 1
}
need_java() {
  find_java || packages openjdk-17-jre-headless
  find_java || fail "Java 11 or 17 is needed; name its folder in JAVA_HOME"
}

if [ -n "${CASSANDRA_HOME:-}" ]; then
  has_jars "$CASSANDRA_HOME" || fail "CASSANDRA_HOME=$CASSANDRA_HOME has no lib/apache-cassandra-*.jar of version 5.0 or later"
  need_java
  give "$CASSANDRA_HOME"
fi
if command -v cassandra >/dev/null 2>&1; then
  # The tarball's program is in bin; that of Debian's package has its jars apart.
  for found in "$(dirname "$(dirname "$(readlink -f "$(command -v cassandra)")")")" /usr/share/cassandra; do
    if has_jars "$found"; then need_java; give "$found"; fi
  done
  say "$(command -v cassandra) is not of version 5.0 or later, or its jars are not beside it"
fi
ready() { [ -e "$home/.ready" ] && find_java; }
! ready || give "$home"

mkdir -p "$cache"
touch "$cache/cassandra.lock"
lock "$cache/cassandra.lock"
! ready || give "$home"
need_java
if [ ! -e "$home/.ready" ]; then
  command -v mvn >/dev/null 2>&1 || packages maven
  say "copying the jars of Cassandra $version with Maven"
  rm -rf "$home" "$build"
  mkdir -p "$build"
  cat >"$build/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>joulefeed</groupId><artifactId>cassandra</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId><version>$version</version>
    </dependency>
  </dependencies>
</project>
POM
  mvn --quiet --batch-mode --file "$build/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
    -DoutputDirectory="$build/lib" >"$build/log" 2>&1 9<&- ||
    { tail -n 20 "$build/log"; fail "Maven could not copy them; the whole log is $build/log"; }
  [ -e "$build/lib/cassandra-all-$version.jar" ] || fail "Maven copied no cassandra-all-$version.jar to $build/lib"
  mkdir -p "$home"
  mv "$build/lib" "$home/lib"
  # The name that the server's own archive gives it.
  ln "$home/lib/cassandra-all-$version.jar" "$home/lib/apache-cassandra-$version.jar"
  rm "$home/lib/cassandra-all-$version.jar"
  rm -rf "$build"
  touch "$home/.ready"
fi
give "$home"
