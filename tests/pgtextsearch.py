"""A stand-in for the extension pg_textsearch: the same names and signs, and BM25 by plain SQL, for a test's server.

The real one is written in C and comes from its own releases. This one is found through `extension_control_path`
(PostgreSQL 18), so that CREATE EXTENSION, the type, both functions, the operator and the access method are the
server's own objects. Its index is a hash index in disguise, whose options a server cannot know: `without_options` takes
`WITH (…)` away; the text of the true statement is pinned by a test of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

CONTROL = "default_version = '1.5.1'\ncomment = 'stand-in'\nrelocatable = true\n"
SCRIPT = r"""
CREATE TYPE bm25query AS (words text, index_name text);
CREATE FUNCTION to_bm25query(input_text text, index_name text) RETURNS bm25query LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF to_regclass(index_name) IS NULL THEN RAISE 'index "%" does not exist', index_name; END IF;
  RETURN ROW(input_text, index_name)::bm25query;
END $$;

-- The corpus is what the index holds: the rows of its table that its predicate lets in.
CREATE FUNCTION bm25_text_bm25query_score(left_text text, right_query bm25query) RETURNS float8
LANGUAGE plpgsql STABLE STRICT COST 1000 AS $$
DECLARE
  place text; inside text; total float8; average float8; n float8; f float8; score float8 := 0; term text; own float8;
BEGIN
  SELECT indrelid::regclass::text, pg_get_expr(indpred, indrelid) INTO place, inside
    FROM pg_index WHERE indexrelid = right_query.index_name::regclass;
  EXECUTE format('SELECT count(*), avg(cardinality(string_to_array(words, '' ''))) FROM %s WHERE %s', place, inside)
    INTO total, average;
  own := cardinality(string_to_array(left_text, ' '));
  FOR term IN SELECT DISTINCT unnest(tsvector_to_array(to_tsvector('simple', right_query.words))) LOOP
    EXECUTE format('SELECT count(*) FROM %s WHERE (%s) AND $1 = ANY(tsvector_to_array(to_tsvector(''simple'', words)))',
      place, inside) INTO n USING term;
    f := cardinality(array_positions(string_to_array(left_text, ' '), term));
    score := score + ln(1 + (total - n + 0.5) / (n + 0.5)) * f * 2.2 / (f + 1.2 * (0.25 + 0.75 * own / average));
  END LOOP;
  RETURN -score;
END $$;

CREATE OPERATOR <@> (LEFTARG = text, RIGHTARG = bm25query, PROCEDURE = bm25_text_bm25query_score);
CREATE ACCESS METHOD bm25 TYPE INDEX HANDLER hashhandler;
CREATE OPERATOR CLASS text_bm25_ops DEFAULT FOR TYPE text USING bm25 AS OPERATOR 1 =, FUNCTION 1 hashtext(text);
"""


def install(folder: Path) -> dict[str, str]:
    """Put the stand-in into a folder; the settings with which a server finds it there."""
    place = folder / "extension"
    place.mkdir()
    (place / "pg_textsearch.control").write_text(CONTROL)
    (place / "pg_textsearch--1.5.1.sql").write_text(SCRIPT)
    for path in (folder, place, *place.iterdir()):
        path.chmod(0o755)  # the server may be somebody else
    return {"extension_control_path": f"{folder}:$system"}


def without_options(statement: str) -> str:
    """The statement without the options of the real access method."""
    return re.sub(r" WITH \(.*?\)", "", statement)
